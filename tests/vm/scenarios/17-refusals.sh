# refusals: an unknown target id, an initiator not on the list, a limit reached: the log says what came and what to do.
boot a
# refused PATTERN [SED] : a login with the printed line (changed by SED) fails, and the target's log says why.
refused() {
    guest a CHANGE="${2:-}" <<'GUEST'
sed "$CHANGE" /share/add_target >/tmp/line
rxe_up
[ -e /sys/module/ib_srp ] || load_srp
eventually 5 test -e $ADD_TARGET
! cat /tmp/line >$ADD_TARGET || fail "the login was not refused"
dmesg | grep -iE 'REJ|reject' | tail -n 2
GUEST
    log_says "$1"
    grep -E "$1" "$TARGET_LOG" | tail -n 1 >&2
}
serve --lun malloc:16M --allow 10.99.0.77
refused '10\.99\.0\.11.*--allow|--allow.*10\.99\.0\.11|not on the .*list'
no_sessions
stop_target

serve --lun malloc:16M
refused 'asks for id_ext=00000000deadbeef' 's/id_ext=[0-9a-f]*/id_ext=00000000deadbeef/'
stop_target

serve --lun malloc:16M --max-sessions 1
guest a <<'GUEST'
login
disk 0
GUEST
boot b
guest b <<'GUEST'
rxe_up
load_srp
eventually 5 test -e $ADD_TARGET
! add_target_line >$ADD_TARGET || fail "the second session was not refused"
dmesg | grep -iE 'REJ|reject' | tail -n 2
GUEST
log_says '--max-sessions|max-sessions|sessions'
guest a <<'GUEST'
dd if="$(disk 0)" of=/dev/null bs=64k count=4 iflag=direct status=none
logout
kernel_is_well
GUEST
no_sessions
stop_target
