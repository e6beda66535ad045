shopt -s extdebug;
@GIVEN@;
case $BASH_COMMAND in
(echo\ *|printf\ *|:\ *|*=\(*) ;;
(*-m*.trainer.main_ppo*)
    _migrate_text=$BASH_COMMAND _migrate_kept=;
    until eval "_migrate_keep $LINENO \"\${BASH_SOURCE-}\" $_migrate_text"; do
        [[ $_migrate_text =~ ^(.*)[[:space:]]([0-9]*|\&)(\>\>|\>\||\>\&|\>|\<)[^\<\>]*$ ]] || break;
        _migrate_text=${BASH_REMATCH[1]};
    done;
    [[ ! $_migrate_kept ]] || ! : ;;
esac
