# ibv-link: no packet for five seconds under verified load, which ends without an error; then the target's port goes down and up.
. "$HERE/lib-ibv.sh"
boot a
boot b
guest_target b --lun malloc:64M
guest a <<'GUEST'
login
patient
GUEST
guest_start a load <<'GUEST'
fio_verify dark --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=16m
GUEST
under_way a load "the black-out"
ip link set tap-b down
sleep 5
ip link set tap-b up
guest_wait a load 240
guest a <<'GUEST'
logout
GUEST

# Without traffic: rxe that cannot send puts the queue pair into the error state, that of its connection manager too.
step "the port down and up"
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions 20
ip link set eth0 down
eventually 5 grep -q 'port state.*up=false' "$TARGET_LOG" || fail "the target does not say that its port is down"
ip link set eth0 up
# Taking an interface down takes its IPv6 addresses with it.
ip addr replace "$vm_ip6" dev eth0 nodad
eventually 5 grep -q 'port state.*up=true' "$TARGET_LOG" || fail "the target does not say that its port is up"
GUEST
guest a <<'GUEST'
login
fio_verify after --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=4m
logout
kernel_is_well
GUEST
guest_target_ends b
