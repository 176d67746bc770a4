# Helpers for scenarios in which srpoll runs inside a guest, on rxe through libibverbs. Sourced by them.
# shellcheck shell=bash

cp "$HERE/lib-ibv-guest.sh" "$RUN/share/"
# The guests are of this machine's Debian, so the binary runs there; without symbols it is read faster.
strip -o "$RUN/share/srpoll" "$SRPOLL"
"$SRPOLL" serve --help | grep -q -- --ibv || fail "this srpoll knows no --ibv"
! "$SRPOLL" serve --ibv nothing --lun null:1M 2>&1 | grep -q 'built without' ||
    fail "this srpoll was built without --features ibv"

# guest_target NAME ARGUMENTS... : starts srpoll in guest NAME, on rxe0 unless the arguments say otherwise, and
# hands its login lines to the other guest.
guest_target() {
    local name=$1
    shift
    local given=" $* " args=()
    [[ $given == *" --ibv "* || $given == *" --soft "* ]] || args+=(--ibv rxe0)
    [[ $given == *" --dead-after "* ]] || args+=(--dead-after 60s)
    guest "$name" ARGS="${args[*]} $*" <<'GUEST'
. /share/lib-ibv-guest.sh
# shellcheck disable=SC2086 # words
target_up $ARGS
GUEST
}

# guest_target_ends NAME : all sessions are gone, srpoll ends in time, and the guest's kernel has nothing to complain of.
guest_target_ends() {
    guest "$1" <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions
target_down
kernel_is_well
GUEST
}
