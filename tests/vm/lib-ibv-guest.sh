# Helpers for the guest part of such scenarios; sourced after lib-guest.sh.
# shellcheck shell=bash

RPC=/tmp/srpoll.sock
TARGET_LOG=/share/$vm_name/target.log
TARGET_OUT=/share/$vm_name/target.out

# target_up ARGUMENTS... : starts srpoll and waits for `ready`.
target_up() {
    [[ " $* " == *" --soft "* ]] || rxe_up
    [ -x /tmp/srpoll ] || cp /share/srpoll /tmp/srpoll
    ulimit -l unlimited
    setsid /tmp/srpoll serve --rpc $RPC --state /tmp/state --allow any "$@" \
        >"$TARGET_OUT" 2>>"$TARGET_LOG" </dev/null &
    echo $! >/tmp/target.pid
    eventually 120 target_is_ready || fail "the target printed no 'ready'; its log ends: $(tail -n 5 "$TARGET_LOG")"
    sed '/^ready$/,$d' "$TARGET_OUT" >/share/add_target
    cat /share/add_target
}
target_is_ready() {
    target_is_there || fail "the target ended at once; its log ends: $(tail -n 5 "$TARGET_LOG")"
    grep -qx ready "$TARGET_OUT"
}
target_is_there() { grep -qs '^State:.[^Z]' "/proc/$(cat /tmp/target.pid)/status"; }
target_is_gone() { ! target_is_there; }
rpc() { /tmp/srpoll rpc --rpc $RPC "$@"; }
sessions() { rpc srp_get_sessions | grep -c '"initiator"' || true; }
sessions_are() { [ "$(sessions)" = "$1" ]; }
# no_sessions [SECONDS] : waits until the target has none.
no_sessions() { eventually "${1:-10}" sessions_are 0 || fail "sessions are still there: $(rpc srp_get_sessions)"; }
# target_down [SECONDS] : SIGTERM; it must end by itself.
target_down() {
    kill -TERM "$(cat /tmp/target.pid)"
    eventually "${1:-15}" target_is_gone || fail "the target did not stop within ${1:-15} s of SIGTERM"
}
target_kill() { kill -9 "$(cat /tmp/target.pid)" && eventually 5 target_is_gone; }
# log_says PATTERN : the target's log has a line like that.
log_says() { grep -Eq -- "$1" "$TARGET_LOG" || fail "the target's log does not say /$1/: $(tail -n 20 "$TARGET_LOG")"; }
channels() { rpc srp_get_sessions | grep -c '"qpn"' || true; }
# books : what the target holds of the system, on one line that the host can compare.
books() {
    local pid
    pid=$(cat /tmp/target.pid)
    books_now() {
        echo "books: $(ls "/proc/$pid/task" | wc -l) threads, $(ls "/proc/$pid/fd" | wc -l) descriptors;" \
            "$(rdma resource show rxe0)"
    }
    local before now
    # Time waits and late jobs of the janitor end by themselves.
    for _ in $(seq 20); do
        before=$(books_now)
        sleep .5
        now=$(books_now)
        [ "$before" != "$now" ] || break
    done
    echo "$now"
}
# rxe_down : rxe0 goes, and the module, which keeps UDP port 4791 that the soft provider wants.
rxe_down() {
    [ ! -e /sys/class/infiniband/rxe0 ] || rdma link delete rxe0
    modprobe -r rdma_rxe
}
