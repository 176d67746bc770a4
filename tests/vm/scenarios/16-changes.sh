# changes: LUNs added, removed and resized by RPC under I/O: unit attention, a rescan shows it, the rest is untouched.
boot a
FILE=$(new_file disk 32M)
serve --lun malloc:64M --lun malloc:16M
rpc bdev_uring_create "{\"name\": \"file\", \"filename\": \"$FILE\"}" >/dev/null
rpc bdev_null_create '{"name": "nothing", "num_blocks": 65536, "block_size": 512}' >/dev/null
rpc srp_target_add_lun '{"bdev_name": "file", "lun": 2}' >/dev/null
rpc srp_target_add_lun '{"bdev_name": "nothing", "lun": 3}' >/dev/null
guest a <<'GUEST'
login
disk 1 >/dev/null
GUEST
guest_start a load <<'GUEST'
fio_verify untouched --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=24m
GUEST
rpc bdev_malloc_create '{"name": "added", "num_blocks": 49152, "block_size": 512}'
rpc srp_target_add_lun '{"bdev_name": "added", "lun": 5}'
guest a <<'GUEST'
rescan() { for host in /sys/class/scsi_host/host*; do [ ! -e "$host/id_ext" ] || echo '- - -' >"$host/scan"; done; }
sg_turs "$(disk 1)" || true # takes the unit attention
rescan
expect "sectors of the new LUN" "$(cat "/sys/block/$(basename "$(disk 5)")/size")" 49152
fio_verify added --filename="$(disk 5)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=8 --size=4m
GUEST
rpc srp_target_remove_lun '{"lun": 1}'
guest a <<'GUEST'
! dd if="$(disk 1)" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null || fail "a removed LUN still reads"
sg_luns "$(disk 0)" | tee luns
! grep -q '0001000000000000' luns || fail "REPORT LUNS still lists LUN 1"
grep -q '0005000000000000' luns
GUEST

step "a file and a device that forgets are resized under I/O"
guest_start a growing <<'GUEST'
fio_verify growing --filename="$(disk 2)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=8 --size=12m
GUEST
sleep 1
truncate -s 48M "$FILE"
rpc bdev_uring_rescan '{"name": "file"}'
rpc bdev_null_resize '{"name": "nothing", "new_size": 16}'
guest a <<'GUEST'
sectors() { cat "/sys/block/$(basename "$1")/size"; }
file=$(disk 2) null=$(disk 3)
expect "sectors of the file before the rescan" "$(sectors "$file")" 65536
for dev in "$file" "$null"; do
    # The attention goes to whichever command comes first: a running load's, which the kernel logs, or this one.
    attention() { sg_turs "$(sg_of "$dev")" 2>&1; dmesg | grep "$(basename "$(readlink -f "/sys/block/${dev##*/}/device")")"; }
    says 'capacity data has changed' attention
    echo 1 >"/sys/block/${dev##*/}/device/rescan"
done
expect "sectors of the file that grew" "$(sectors "$file")" $((48 * 2048))
expect "sectors of the device that shrank" "$(sectors "$null")" $((16 * 2048))
fio_verify grown --filename="$file" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=8 --offset=32m --size=8m
says 'Logical block address out of range' sg_raw -r 4096 "$null" 28 00 00 00 80 00 00 00 08 00
sg_raw -r 4096 "$null" 28 00 00 00 7f f8 00 00 08 00 2>/dev/null
GUEST
guest_wait a growing
[ -e "$RUN/share/a/load.rc" ] || note "the load on LUN 0 ran through all changes"
guest_wait a load
guest a <<'GUEST'
keep_image 2
logout
kernel_is_well
GUEST
no_sessions
stop_target
same_as_guest "$FILE" 2
