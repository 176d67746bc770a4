# ibv-login: srpoll in a guest, on rxe through libibverbs: the lines printed for IPv4 and IPv6 log in, data compare.
. "$HERE/lib-ibv.sh"
boot a
boot b
guest_target b --lun malloc:64M

guest a <<'GUEST'
login
expect "size of LUN 0 in sectors" "$(cat /sys/block/"$(basename "$(disk 0)")"/size)" $((64 * 2048))
sg_inq "$(disk 0)"
dd if=/dev/urandom of=data bs=64k count=4 status=none
dd if=data of="$(disk 0)" bs=64k seek=2 oflag=direct conv=notrunc status=none
dd if="$(disk 0)" bs=64k skip=2 count=4 iflag=direct status=none | cmp - data
# Immediate data: one block.
dd if="$(disk 0)" of=block bs=4k count=1 iflag=direct status=none
dd if=data of="$(disk 0)" bs=4k count=1 oflag=direct conv=notrunc status=none
GUEST
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
expect "sessions while logged in" "$(sessions)" 1
rpc srp_get_sessions
GUEST
guest a <<'GUEST'
logout
kernel_is_well
GUEST

step "over IPv6"
guest a <<'GUEST'
cat /share/add_target
line=$(grep -n 'fd99' /share/add_target | cut -d: -f1)
[ -n "$line" ] || fail "the target printed no line for its IPv6 address"
login "" "$line"
fio_verify six --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-128k --iodepth=16 --size=4m
logout
kernel_is_well
GUEST
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions
target_down
kernel_is_well
grep -v ' INFO ' "$TARGET_LOG" || true
GUEST
