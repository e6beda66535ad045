#!/usr/bin/env bash
# A run on the hosts of a file, started by mpiexec: for sites with PBS, or without any scheduler.
# usage: launch/mpiexec.sh CONFIG [SETTING...]
#   HOSTFILE      a host a line, once for each of its ranks (default: $PBS_NODEFILE)
#   PPN           ranks of each host (default: how often the file names each)
#   PYTHON        interpreter of the environment that has verl_hpc, after the words that enter a
#                 container, if any (default: python)
#   MPIEXEC       mpiexec of the MPI library that ranks use, and options for it (default: mpiexec)
#   MPIEXEC_KIND  mpich, intel, openmpi or pals (default: what `mpiexec --version` says)
#   VERL_HPC_GPUS_PER_NODE  GPUs of each host: a rank that cannot use one ends the run
#   VERL_HPC_END_TIME       when the hosts must be given back, in seconds since the epoch: the run
#                           saves and leaves before that
# Exit status: 0, the run is over; 85, all ranks have saved, and the next start goes on from there;
# any other, the run has failed. TERM and Ctrl-C make the ranks save and leave.
# What ranks say is in RUN/job/attempts/K/HOST.rankR.log, and what mpiexec says in mpiexec.log there.
# Relative paths begin where this is started.
set -u
checkout=$(dirname "$(dirname "$(readlink -f "$0")")")
say() { echo "$(date +%FT%T) $*"; }
fail() {
    say "$*" >&2
    exit 1
}
config=${1:?usage: launch/mpiexec.sh CONFIG [SETTING...]}
read -ra python <<<"${PYTHON:-python}"
read -ra mpiexec <<<"${MPIEXEC:-mpiexec}"

file=${HOSTFILE:-${PBS_NODEFILE:-}}
[ -r "$file" ] || fail "HOSTFILE=$file: cannot be read; set it to a file with a host a line"
lines=$(awk 'NF && $1 !~ /^#/ { $1 = $1; print }' "$file") # a pipe can be read only once
[ -n "$lines" ] || fail "HOSTFILE=$file: names no host; write one a line"
odd=$(LC_ALL=C awk '!/^[A-Za-z0-9._-]+$/ { print; exit }' <<<"$lines")
[ -z "$odd" ] || fail "HOSTFILE=$file: $(printf %q "$odd") is not the name of a host; write one host" \
    "a line, and set PPN to the ranks of each"
hosts=$(awk '!seen[$0]++' <<<"$lines")
counts=$(awk '{ n[$0]++ } END { for (host in n) print n[host] }' <<<"$lines" | sort -un)
ppn=${PPN:-$counts}
[[ $ppn =~ ^[1-9][0-9]*$ ]] || fail "PPN=${ppn//$'\n'/ or }: every host has the same number of" \
    "ranks; set PPN to it, or name each host in $file that often"
gpus=${VERL_HPC_GPUS_PER_NODE:-0}
[[ $gpus =~ ^[0-9]+$ ]] || fail "VERL_HPC_GPUS_PER_NODE=$gpus: is no number; set it to the GPUs of" \
    "each host"
end=${VERL_HPC_END_TIME-0}
[[ $end =~ ^[0-9]+$ ]] || fail "VERL_HPC_END_TIME=$end: is no number of seconds since the epoch; set" \
    "it as \$(date +%s -d '+12 hours') does"
command -v "${python[0]}" >/dev/null || fail "PYTHON=${python[*]}: '${python[0]}' cannot be started" \
    "here; set PYTHON to the interpreter of the environment that has verl_hpc"
[ "$gpus" = 0 ] || [ -n "${PPN-}" ] || [ "$gpus" = "$ppn" ] || fail "VERL_HPC_GPUS_PER_NODE=$gpus:" \
    "$file names each host $ppn times, for as many ranks; set PPN to the ranks of each host"

version=$("${mpiexec[0]}" --version 2>&1)
case ${MPIEXEC_KIND:-$version} in
mpich | *HYDRA*) kind=mpich ;;
intel | *Intel*) kind=intel ;;
openmpi | *"Open MPI"* | *OpenRTE*) kind=openmpi ;;
pals | *PALS*) kind=pals ;;
*) fail "MPIEXEC_KIND=${MPIEXEC_KIND-}: '${mpiexec[0]} --version' says '${version%%$'\n'*}';" \
    "set MPIEXEC_KIND to mpich, intel, openmpi or pals" ;;
esac

# Where the run directory is, if nobody uses it.
export PYTHONUNBUFFERED=1 PYTHONUTF8=1 PYTHONSAFEPATH=1 PYTHONHASHSEED=0 \
    HDF5_USE_FILE_LOCKING=FALSE PYTHONNOUSERSITE=1 PYTHONPATH="$checkout"
run=$("${python[@]}" - "$@" <<'PY'
import sys
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import VerlHpcError
from verl_hpc.migration.translate import load_run
from verl_hpc.runs.lock import RunLock
try:
    found = load_run(sys.argv[1], sys.argv[2:])
    config = found if isinstance(found, RunConfig) else found.config()
    if config.run_directory.is_dir():
        RunLock(config.run_directory).release()
except (VerlHpcError, OSError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(config.run_directory)
PY
) || exit 1

# Every start has its own logs and its own outcome.
umask 077
mkdir -p "$run/job/attempts" || exit 1
last=$(basename -a "$run"/job/attempts/* | grep -xE '[0-9]+' | sort -n | tail -n 1)
attempt=$((${last:--1} + 1))
export VERL_HPC_ATTEMPT="$run/job/attempts/$attempt"
mkdir "$VERL_HPC_ATTEMPT" ||
    fail "$VERL_HPC_ATTEMPT cannot be made: another start of this run came at the same moment," \
        "or you may not write there; start it again when you are sure that it does not run"
ln -sfn "$attempt" "$run/job/attempts/latest"
say "attempt $attempt: ranks of each host: $ppn, hosts:" "${hosts//$'\n'/ }"

total=$(($(wc -l <<<"$hosts") * ppn))
each_once=$VERL_HPC_ATTEMPT/hosts
leave=TERM
case $kind in
mpich | intel)
    # Below a scheduler Intel's mpiexec takes its count of ranks otherwise.
    export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=disable
    words=(-f "$each_once" -ppn "$ppn")
    ;;
openmpi)
    hosts="${hosts//$'\n'/ slots=$ppn$'\n'} slots=$ppn"
    words=(--hostfile "$each_once" --map-by "ppr:$ppn:node" --bind-to none)
    # The other kinds hand on all variables by themselves.
    for name in $(compgen -e); do
        [[ $name =~ ^(PBS_|OMPI_|PMIX_|PRTE_|HOSTNAME$|PWD$|OLDPWD$|SHLVL$|_$) ]] ||
            words+=(-x "$name")
    done
    leave=USR2 # TERM would end the ranks at once.
    ;;
pals) words=(--hostfile "$each_once" --ppn "$ppn" --cpu-bind none) ;;
esac
echo "$hosts" >"$each_once"

# A signal ends the wait for mpiexec, but not mpiexec.
told='' child='' signalled=''
trap 'told=1 signalled=1; [ -z "$child" ] || kill -"$leave" "$child" 2>/dev/null' TERM INT USR2

# What runs on each host in the place of a rank, until it becomes the rank. The TMPDIR of another
# host may not be there. MPICH ends the other ranks if one is killed; if one exits before MPI_Init,
# they wait for it forever. Ranks run compiled code from the cache, so that it must be nobody else's.
# shellcheck disable=SC2016
rank='fail() {
    echo "$(uname -n): $*" >&2
    kill -KILL $$
}
[ -d "${TMPDIR-}" ] || export TMPDIR=/tmp
export VERL_HPC_CACHE="${VERL_HPC_CACHE:-$TMPDIR/verl_hpc-$(id -u)}"
mkdir -m 700 -p "$VERL_HPC_CACHE" && [ -O "$VERL_HPC_CACHE" ] && [ ! -L "$VERL_HPC_CACHE" ] ||
    fail "VERL_HPC_CACHE=$VERL_HPC_CACHE: cannot be made, is a link, or is another user'"'"'s;" \
        "set VERL_HPC_CACHE to a directory of your own on each host"
shopt -s execfail
exec "$@" >"$VERL_HPC_ATTEMPT/$(uname -n).rank${PMI_RANK:-$PMIX_RANK}.log" 2>&1
fail "VERL_HPC_ATTEMPT=$VERL_HPC_ATTEMPT: cannot be written here, or $1 cannot be started"'
"${mpiexec[0]}" -n "$total" "${words[@]}" "${mpiexec[@]:1}" bash -c "$rank" rank \
    "${python[@]}" -m verl_hpc train --config "$config" "${@:2}" \
    >"$VERL_HPC_ATTEMPT/mpiexec.log" 2>&1 &
child=$!
[ -z "$told" ] || kill -"$leave" "$child"
told=1
while [ -n "$told" ]; do
    told=
    wait "$child"
    rc=$?
done

# Some mpiexec make one status of all ranks' by OR, and one rank's 1 and another's 85 are 85.
outcome=$(cat "$VERL_HPC_ATTEMPT/outcome" 2>/dev/null)
if [ -n "$signalled" ] && [ "$outcome" = restart ]; then
    rc=85 # bash may lose the status of an mpiexec that ends while a signal is handled
elif [ "$rc" -eq 0 ] && [ -z "$outcome" ]; then
    rc=1
elif [ "$rc" -eq 85 ] && [ "$outcome" != restart ]; then
    rc=1
fi
case $rc in
0) say "the run is over: $outcome" ;;
85) say "saved, and the run is not over: the next start goes on from there" ;;
*)
    say "failed with status $rc; mpiexec said:" >&2
    tail -n 20 "$VERL_HPC_ATTEMPT/mpiexec.log" >&2
    say "the ranks' own words: python -m verl_hpc logs $run --first-error" >&2
    ;;
esac
exit "$rc"
