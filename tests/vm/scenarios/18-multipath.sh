# multipath: two listeners, dm-multipath, one path cut and restored under verified load; same NAA, no error seen above.
ip addr add 10.99.0.2/24 dev br0
boot a
FILE=$(new_file disk 64M)
serve --soft 10.99.0.1 10.99.0.2 --lun "uring:$FILE" --dead-after 10s
guest a <<'GUEST'
login tl_retry_count=2 1
# ib_srp wants another initiator extension for a second way to the same target.
login tl_retry_count=2,initiator_ext=0000000000000002 2
for p in /sys/class/srp_remote_ports/*; do
    echo 2 >"$p/reconnect_delay"
    echo 3 >"$p/fast_io_fail_tmo"
    echo off >"$p/dev_loss_tmo"
done
naa() { sg_vpd --page=0x83 "$1" | grep -oE '0x[0-9a-f]{16}' | head -n1; }
first=$(disk 0 1) second=$(disk 0 2)
[ "$first" != "$second" ] || fail "only one disk"
expect "NAA on the second path" "$(naa "$second")" "$(naa "$first")"
expect "NAA present" "$(naa "$first" | cut -c1-2)" 0x
modprobe -a dm_multipath dm_round_robin
size=$(cat "/sys/block/${first##*/}/size")
dmsetup create mp --table "0 $size multipath 1 queue_if_no_path 0 1 1 round-robin 0 2 1 $first 16 $second 16"
dmsetup mknodes
GUEST
guest_start a load <<'GUEST'
fio_verify load --filename=/dev/mapper/mp --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=32m
GUEST
under_way a load "the path was cut"
step "10.99.0.2 answers no more"
ip addr del 10.99.0.2/24 dev br0
sleep 20
ip addr add 10.99.0.2/24 dev br0
guest_wait a load
guest a <<'GUEST'
dmsetup status mp
# What multipathd would do when the path is back.
dmsetup message mp 0 "reinstate_path $(disk 0 2)" || true
dmsetup remove --retry mp
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
stop_target
same_as_guest "$FILE" 0
