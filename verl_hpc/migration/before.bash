exec {BASH_XTRACEFD}>/dev/null
@GIVEN@
_migrate_starts() { # WORD...: whether they start verl
    local word before=
    for word; do
        [[ $before == -m && $word =~ ^(verl|verl_hpc)\.trainer\.main_ppo$ ]] && return
        before=$word
    done
    return 1
}
_migrate_keep() { # LINE FILE WORD...: write a command down if it starts verl
    _migrate_starts "${@:3}" || return 0
    _migrate_kept=1
    printf '%s\0' "${@:1:2}" "$(<@FOLDER@/errors)" $(($# - 2)) "${@:3}" >> @FOLDER@/starts
}
command_not_found_handle() {
    local line=${BASH_LINENO[0]} file=${BASH_SOURCE[1]-} _migrate_kept=
    _migrate_keep $line "$file" "$@"
    [[ $_migrate_kept ]] || printf '%s\0' $line "$file" "" $# "$@" >> @FOLDER@/others
    [[ -p /dev/stdin ]] && @FOLDER@/bin/cat > /dev/null
    [[ $1 == python* && ${2-} == -c && ${3-} != *print* ]] && return 1
    [[ -p /dev/stdout ]] && printf '\1%s:%s\1\n' $line "$1"
    return 0
}
ulimit() { :; } # limits of this machine
set -T
trap @TRAP@ DEBUG
