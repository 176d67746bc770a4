# error-handling: device, bus and host reset in a loop under I/O; errors of the medium reach the application with their sense.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE" --lun malloc:64M

guest a <<'GUEST'
login
patient
fio --name=busy --ioengine=libaio --filename="$(disk 1)" --direct=1 --rw=randrw --bs=4k --iodepth=16 --time_based --runtime=10 --size=64m >busy.txt 2>&1 &
busy=$!
sg=$(sg_of "$(disk 1)")
for _ in 1 2 3 4; do
    sleep 1
    sg_reset -d "$sg"
done
sg_reset -b "$sg" || true # ib_srp has no bus reset of its own
sg_reset -H "$sg"
wait $busy || { tail -n 20 busy.txt; fail "I/O under resets failed"; }
grep -q 'err= 0' busy.txt
fio_verify after --filename="$(disk 1)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=8m
GUEST

step "the file is truncated while it is served"
truncate -s 32M "$FILE"
guest a <<'GUEST'
disk=$(disk 0)
dd if="$disk" of=/dev/null bs=4k skip=100 count=1 iflag=direct status=none
! dd if="$disk" of=/dev/null bs=4k skip=12000 count=1 iflag=direct 2>err || fail "a read beyond the file's end succeeded"
cat err
# What the kernel makes of MEDIUM ERROR: ENODATA, or EIO by way of the page cache.
grep -qE 'Input/output error|No data available' err
sg=$(sg_of "$disk")
# The target looks at its files every tenth of a second. The attention goes to whichever command comes first then: the
# kernel's, which logs it, or one of these.
attention_came() {
    sg_turs "$sg" >>attention 2>&1 || true
    dmesg >log
    grep -qi 'capacity data has changed' attention log
}
eventually 5 attention_came || { cat attention log && fail "no attention for the new capacity"; }
says 'medium error' sg_raw -r 4096 "$sg" 28 00 00 01 77 00 00 00 08 00 # READ (10) of LBA 96000
GUEST
log_says 'was truncated to 33554432 bytes'

step "it grows again: what was cut off stays an error until an administrator says otherwise"
truncate -s 64M "$FILE"
log_will_say 'grew to 67108864 bytes'
guest a <<'GUEST'
disk=$(disk 0)
! dd if="$disk" of=/dev/null bs=4k skip=12000 count=1 iflag=direct status=none 2>/dev/null || fail "what was cut off reads as if it had always been zeroes"
! dd if=/dev/zero of="$disk" bs=4k seek=12000 count=1 oflag=direct conv=notrunc status=none 2>/dev/null || fail "a write beyond the cut succeeded"
dd if="$disk" of=/dev/null bs=4k skip=100 count=1 iflag=direct status=none
GUEST
rpc bdev_uring_rescan '{"name": "uring0"}' >/dev/null
guest a <<'GUEST'
sg_turs "$(sg_of "$(disk 0)")" || true # takes the attention
fio_verify whole --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=40m --size=8m
logout
kernel_is_well
GUEST
no_sessions
stop_target
