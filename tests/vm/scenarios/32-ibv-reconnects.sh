# ibv-reconnects: a hundred logins and logouts; threads, descriptors and queue pairs of the target stay as they were.
. "$HERE/lib-ibv.sh"
boot a
boot b
guest_target b --lun malloc:64M

# rounds COUNT : logs in, reads, logs out, so often.
rounds() {
    GUEST_TIMEOUT=500 guest a COUNT="$1" <<'GUEST'
for _ in $(seq "$COUNT"); do
    login
    dd if="$(disk 0)" of=/dev/null bs=4k count=1 iflag=direct status=none
    logout
done
kernel_is_well
GUEST
    guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions
books
GUEST
}
# What the stock and the pool hold after a few is what there is after many.
rounds 5
BEFORE=$(sed -n 's/^books: //p' "$RUN/share/b/step$GUEST_STEP.log")
[ -n "$BEFORE" ] || fail "the target has no books"
rounds 100
AFTER=$(sed -n 's/^books: //p' "$RUN/share/b/step$GUEST_STEP.log")
expect "threads, descriptors, and what the device holds" "$AFTER" "$BEFORE"
note "after 5 and after 105 logins: $AFTER"
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
rpc framework_get_reactors >/dev/null
target_down
kernel_is_well
GUEST
