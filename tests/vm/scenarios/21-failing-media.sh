# failing-media: errors of the device, a full file system, a replaced and an unlinked file: who is told what.
boot a
mkdir "$RUN/small"
mount -t tmpfs -o size=24m tmpfs "$RUN/small"
truncate -s 64M "$RUN/small/thin"
REPLACED=$(new_file replaced 16M) UNLINKED=$(new_file unlinked 16M)
serve --lun malloc:64M --lun "uring:$RUN/small/thin" --lun "uring:$REPLACED" --lun "uring:$UNLINKED"
# A file, since memory has no cache that a flush could fail to write back.
rpc bdev_uring_create "{\"name\": \"base\", \"filename\": \"$(new_file base 32M)\"}" >/dev/null
rpc bdev_error_create '{"base_name": "base"}' >/dev/null
rpc srp_target_add_lun '{"bdev_name": "EE_base", "lun": 5}' >/dev/null
BASELINE=$(holdings)
# inject TYPE ERROR COUNT [MORE]
inject() { rpc bdev_error_inject_error "{\"name\": \"EE_base\", \"io_type\": \"$1\", \"error_type\": \"$2\", \"num\": $3 ${4:-}}" >/dev/null; }
clear_faults() { inject clear failure 0; }

guest a <<'GUEST'
login
dev=$(disk 5)
fio_verify sound --filename="$dev" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=8 --size=4m
GUEST

step "the device cannot read"
inject read failure 1000
guest a <<'GUEST'
dev=$(disk 5)
echo 3 >/proc/sys/vm/drop_caches
! dd if="$dev" of=/dev/null bs=4k count=1 skip=2000 status=none 2>err || fail "a failing read succeeded"
cat err
# Through the page cache an application gets EIO, whatever the sense data.
grep -q 'Input/output error' err
says 'medium error' sg_raw -r 4096 "$dev" 28 00 00 00 00 08 00 00 08 00
says 'unrecovered read error' sg_raw -r 4096 "$dev" 28 00 00 00 00 08 00 00 08 00
dmesg | grep -E 'Sense Key : Medium Error|Unrecovered read error' | tail -n 2 | grep . || fail "the kernel's log has no medium error"
GUEST
clear_faults

step "the device cannot write, or flush"
inject write failure 1000
guest a <<'GUEST'
dev=$(disk 5)
dd if=/dev/zero of=block bs=4k count=1 status=none
! dd if=block of="$dev" bs=4k seek=3000 oflag=direct conv=notrunc status=none 2>err || fail "a failing write succeeded"
cat err
says 'write error' sg_raw -s 4096 -i block "$dev" 2a 00 00 00 00 08 00 00 08 00
! dd if=block of="$dev" bs=4k seek=3000 conv=notrunc,fsync status=none 2>err || fail "fsync of a failing write succeeded"
grep -q 'Input/output error' err
GUEST
clear_faults
inject flush failure 1000
guest a <<'GUEST'
! sg_sync "$(disk 5)" 2>err || fail "a failing flush succeeded"
GUEST
clear_faults
[ "$(counter block_errors)" -ge 5 ] || fail "the target counted only $(counter block_errors) errors of block devices"
note "$(counter block_errors) errors of block devices injected and answered"

step "a full queue is waited out; a wrong byte is found by who looks"
inject write nomem 200
guest a <<'GUEST'
fio_verify full --filename="$(disk 5)" --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=2m
GUEST
clear_faults
inject write corrupt_data 1 ', "corrupt_offset": 77, "corrupt_value": 165'
guest a <<'GUEST'
! (fio_verify wrong --filename="$(disk 5)" --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=1m) >wrong || fail "fio did not find a wrong byte: its verification proves nothing"
grep -m 2 -E '^verify: |verify failed|crc32c' /tmp/fio-wrong.txt
fio_verify right --filename="$(disk 5)" --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=1m
GUEST

step "the file system that holds a LUN is full"
guest a <<'GUEST'
dev=$(disk 1)
! dd if=/dev/zero of="$dev" bs=1M count=40 oflag=direct conv=notrunc status=none 2>err || fail "40 MiB went to a file system of 24 MiB"
cat err
grep -q 'No space left on device' err || dmesg | grep -q 'Space allocation failed' || fail "nothing says what failed"
GUEST
mount -o remount,size=96m "$RUN/small"
guest a <<'GUEST'
fio_verify space --filename="$(disk 1)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --offset=32m --size=8m
GUEST

step "a file is replaced by another, and one is unlinked"
truncate -s 16M "$RUN/other"
mv "$RUN/other" "$REPLACED"
rm "$UNLINKED"
log_will_say "replaced by another file"
log_will_say "was unlinked"
grep -E 'replaced by another file|was unlinked' "$TARGET_LOG" >&2
guest a <<'GUEST'
dev=$(disk 2)
# The attention goes to whichever command comes first: the kernel's, which logs it, or this one.
attention() { sg_turs "$(sg_of "$dev")" 2>&1; dmesg; }
says 'capacity data has changed' attention
! dd if="$dev" of=/dev/null bs=4k count=1 iflag=direct status=none 2>err || fail "a file that was replaced still reads"
cat err
says 'medium error' sg_raw -r 4096 "$dev" 28 00 00 00 00 00 00 00 08 00
fio_verify nameless --filename="$(disk 3)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=4m
fio_verify untouched --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=4m
logout
kernel_is_well
GUEST
no_sessions
gave_all_back "$BASELINE"
stop_target
umount "$RUN/small"
