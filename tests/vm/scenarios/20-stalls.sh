# stalls: a LUN whose device stalls: aborts and resets in a loop under I/O, no late data, no leak; the rest stays quick.
boot a
FILE=$(new_file disk 64M)
serve --lun malloc:64M
rpc bdev_uring_create "{\"name\": \"file\", \"filename\": \"$FILE\"}" >/dev/null
rpc bdev_delay_create '{"base_bdev_name": "file", "name": "slow", "avg_read_latency": 50000, "p99_read_latency": 5000000,
    "avg_write_latency": 50000, "p99_write_latency": 5000000}' >/dev/null
rpc srp_target_add_lun '{"bdev_name": "slow", "lun": 1}' >/dev/null
BASELINE=$(holdings)

step "one operation in a hundred takes longer than the initiator waits; resets in a loop"
guest a <<'GUEST'
login
patient
dev=$(disk 1)
# What takes longer than this is aborted, and sent again.
echo 2 >"/sys/block/${dev##*/}/device/timeout"
rm -f /tmp/loaded
(fio_verify stalling --filename="$dev" --direct=1 --rw=randwrite --bsrange=4k-16k --iodepth=8 --size=4m && touch /tmp/loaded) &
load=$!
sg=$(sg_of "$dev")
resets=0
for round in 1 2 3 4 5 6; do
    sleep 1
    [ ! -e /tmp/loaded ] || break
    sg_reset -d "$sg" && resets=$((resets + 1))
    [ $round != 3 ] || sg_reset -b "$sg" || true # ib_srp has no bus reset of its own
    [ $round != 5 ] || sg_reset -H "$sg"
done
wait $load
[ $resets -ge 3 ] || fail "only $resets resets of the device came to their end under load"
echo "$resets device resets, $(dmesg | grep -c 'SRP abort called' || true) aborts"
keep_image 1
kernel_is_well
GUEST
note "$(grep -ho '[0-9]* device resets, .*' "$RUN/share/a/step$GUEST_STEP.log")"
[ "$(counter task_management)" -ge 4 ] || fail "the target saw only $(counter task_management) task management functions"
[ "$(counter aborted)" -ge 1 ] || fail "nothing was aborted"
note "target: $(counter task_management) task management functions, $(counter aborted) commands ended by them, $(counter orphans) while the device had them"
same_as_guest "$FILE" 1

step "every write stalls for 70 s; meanwhile logins, resets and I/O of another LUN"
for type in avg_write p99_write; do
    rpc bdev_delay_update_latency "{\"delay_bdev_name\": \"slow\", \"latency_type\": \"$type\", \"latency_us\": 70000000}" >/dev/null
done
for type in avg_read p99_read; do
    rpc bdev_delay_update_latency "{\"delay_bdev_name\": \"slow\", \"latency_type\": \"$type\", \"latency_us\": 0}" >/dev/null
done
guest_start a stalled <<'GUEST'
dev=$(disk 1)
echo 200 >"/sys/block/${dev##*/}/device/timeout"
begun=$SECONDS
# All at once, in commands so small that their data come with them.
fio_verify stalled --filename="$dev" --direct=1 --rw=randwrite --bs=4k --iodepth=32 --size=128k
echo "the writes took $((SECONDS - begun)) s"
GUEST
sleep 4
[ ! -e "$RUN/share/a/stalled.rc" ] || fail "the writes did not stall"
GUEST_TIMEOUT=120 guest a <<'GUEST'
one_host() { [ "$(ls -d /sys/class/srp_host/* | wc -l)" = 1 ]; }
rounds=0 longest=0
first=$(disk 0)
while [ $rounds -lt 8 ]; do
    begun=$SECONDS
    login initiator_ext=0000000000000002
    fio_verify "beside$rounds" --filename="$(disk 0 2)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=512k
    # Task management on the channel whose other commands stall.
    sg_reset -d "$(sg_of "$first")"
    dd if="$first" of=/dev/null bs=64k count=4 iflag=direct status=none
    for host in /sys/class/srp_remote_ports/*; do last=$host; done
    echo 1 >"$last/delete"
    eventually 30 one_host || fail "the second session does not log out"
    took=$((SECONDS - begun))
    [ $took -le $longest ] || longest=$took
    [ ! -e /share/a/stalled.rc ] || break
    rounds=$((rounds + 1))
done
[ $rounds -ge 3 ] || fail "only $rounds rounds while the writes stalled"
echo "$rounds logins with I/O and a reset while the writes stalled, the longest took $longest s"
GUEST
note "$(grep -ho '[0-9]* logins with .*' "$RUN/share/a/step$GUEST_STEP.log")"
guest_wait a stalled 180
guest a <<'GUEST'
logout
kernel_is_well
GUEST
no_sessions
gave_all_back "$BASELINE"
stop_target
