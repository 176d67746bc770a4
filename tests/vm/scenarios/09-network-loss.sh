# network-loss: 1 % and 5 % of the packets lost each way; no wrong byte, and it is said whether the session survived.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE"

# under PARAMETERS : the load under 1 % and 5 % loss, with these module parameters of ib_srp.
under() {
    step "ib_srp ${1:-(defaults)}"
    GUEST_TIMEOUT=900 guest a PARAMETERS="$1" <<'GUEST'
modprobe -r ib_srp 2>/dev/null || true
# shellcheck disable=SC2086 # words
load_srp $PARAMETERS
login
patient
for loss in 1 5; do
    before=$(reconnects)
    # Each reconnect takes seconds, and their number is chance: less data where there are most.
    size=4m
    [ "$loss" = 1 ] || size=2m
    netem_both loss $loss%
    fio_verify "loss$loss" --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=$((loss * 4))m --size=$size
    netem_off
    fate "$before" "$loss % loss, ${PARAMETERS:-defaults}"
done
rxe_counters
keep_image 0
logout
kernel_is_well
GUEST
    note "$(awk '/^netem dropped/ {n += $3} END {print n + 0}' "$RUN/share/a/step$GUEST_STEP.log") packets lost, ib_srp ${1:-with its defaults}"
    no_sessions 20
}
# With registration, which is the default, rxe does not survive a lost SEND as a rule: it goes back and registers
# a region that is registered already (rxe_reg_fast_mr: "not free"). On 6.12 its queue pair fails and ib_srp logs in
# anew; on 6.1 it just sends no more, until SCSI's timers reset the host two minutes later: too slow for a test.
[ "$KERNEL" = 6.1 ] || under ""
under "never_register=Y"
stop_target
same_as_guest "$FILE" 0
