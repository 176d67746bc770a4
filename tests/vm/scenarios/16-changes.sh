# changes: a LUN added and one removed by RPC under I/O on another: unit attention, a rescan shows it, the rest is untouched.
boot a
serve --lun malloc:64M --lun malloc:16M
guest a <<'GUEST'
login
disk 1 >/dev/null
GUEST
guest_start a load <<'GUEST'
fio_verify untouched --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=16m
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
guest_wait a load 240
guest a <<'GUEST'
logout
kernel_is_well
GUEST
no_sessions
stop_target
