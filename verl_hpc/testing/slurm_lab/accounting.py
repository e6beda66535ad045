"""Slurm's accounting in a lab: slurmdbd, and the MariaDB server that stores its data."""

from __future__ import annotations

import os
import pwd
import subprocess

from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab import processes
from verl_hpc.testing.slurm_lab.programs import LabPrograms
from verl_hpc.testing.slurm_lab.root import as_root

ACCOUNT = "lab"
"""The account that every job of a lab is charged to unless it names another."""
_TIMEOUT_S = 60.0
_GRANT = (
    "create user if not exists 'slurm'@'127.0.0.1' identified by 'slurm'; "
    "grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'"
)


@as_root()
def start(lab: LabPrograms, database_port: int) -> None:
    """Start the database and slurmdbd, and make the account that jobs are charged to.

    The account is that of the user to whom the lab's directory belongs.

    Raises:
        ClusterError: one of them does not start.
    """
    data, log = lab.directory / "database", lab.directory / "log"
    place = ["--no-defaults", "--user=root", f"--datadir={data}"]
    if not (data / "mysql").is_dir():
        method = "--auth-root-authentication-method=normal"
        lab.run("mariadb-install-db", *place, method, "--skip-test-db")
    address = ["--bind-address=127.0.0.1", f"--port={database_port}"]
    files = [f"--socket={_socket(lab)}", f"--pid-file={lab.directory}/run/mariadbd.pid"]
    # slurmdbd advises these two.
    sizes = ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    with (log / "mariadbd.log").open("w") as told:
        subprocess.Popen(
            [
                lab.program("mariadbd"),
                *place,
                *address,
                *files,
                *sizes,
                "--innodb-flush-log-at-trx-commit=0",
            ],
            env=lab.variables,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
    if not processes.wait_for(lambda: _query(lab, "select 1"), _TIMEOUT_S):
        raise ClusterError("mariadbd does not answer")
    if not _query(lab, _GRANT):
        raise ClusterError("mariadbd refuses to make a user for slurmdbd")
    os.chown(lab.directory / "slurmdbd.conf", 0, 0)  # else slurmdbd refuses it
    lab.run("slurmdbd")
    if not processes.wait_for(lambda: _knows_cluster(lab), _TIMEOUT_S, 0.2):
        raise ClusterError("slurmdbd does not answer")


def _socket(lab: LabPrograms) -> str:
    return f"{lab.directory}/run/db.socket"


def _query(lab: LabPrograms, words: str) -> bool:
    command = ["mariadb", "--no-defaults", f"--socket={_socket(lab)}", "--execute", words]
    return subprocess.run(command, env=lab.variables, capture_output=True).returncode == 0


def _knows_cluster(lab: LabPrograms) -> bool:
    """Whether slurmdbd knows the cluster, the account and its user; if not, add them."""
    user = pwd.getpwuid(lab.directory.stat().st_uid).pw_name
    try:
        known = lab.run("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "WithAssoc")
        if ACCOUNT in known:
            return True
        for words in (
            ["cluster", "lab"],
            ["account", ACCOUNT, "cluster=lab"],
            ["user", user, f"account={ACCOUNT}", f"defaultaccount={ACCOUNT}"],
        ):
            lab.run("sacctmgr", "--immediate", "add", *words)
    except ClusterError as error:
        if "Nothing new added" not in str(error):
            return False
    return False
