"""Configuration of slurmdbd and slurmctld for accounting in a lab."""

from __future__ import annotations

_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser={user}
LogFile={directory}/log/slurmdbd.log
PidFile={directory}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
CONTROLLER = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={munge_socket}
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
# Each node has a meter of its own, a file that a test writes, in place of /sys/cray/pm_counters.
AcctGatherEnergyType=acct_gather_energy/pm_counters
JobAcctGatherFrequency=1
AcctGatherNodeFreq=1
"""


def slurmdbd_conf(values: dict[str, object]) -> str:
    """Return the configuration of slurmdbd, a file next to slurm.conf."""
    return _DATABASE.format(**values)
