# ibv-removal: rxe0 is removed under load: sessions and listeners end, the target stays, stops, and serves again on a new rxe0.
. "$HERE/lib-ibv.sh"
boot a
boot b
guest_target b --lun malloc:64M --id-ext 00000000000000aa --ioc-guid 00000000000000bb
guest a <<'GUEST'
login
patient
GUEST
guest_start a load <<'GUEST'
# A host that answers and has no target refuses the reconnect, whereupon ib_srp fails what waits.
fio --name=load --ioengine=libaio --filename="$(disk 0)" --direct=1 --rw=randread --bsrange=4k-64k --iodepth=8 --size=32m >load.log || tail -n 3 load.log
GUEST
under_way a load "the device was removed"
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
sessions_are 1
# rxe waits for processes that have it open, so this ends when the target does.
rdma link delete rxe0 >/tmp/delete.log 2>&1 &
echo $! >/tmp/delete.pid
eventually 20 sh -c "grep -q 'RDMA device is gone' $TARGET_LOG" || fail "the target does not say that its device is gone"
no_sessions 20
target_is_there || fail "the target is gone too"
rpc srp_get_targets >/dev/null
target_down 20
deleted() { [ ! -d "/proc/$(cat /tmp/delete.pid)" ] || grep -q '^State:.Z' "/proc/$(cat /tmp/delete.pid)/status"; }
eventually 20 deleted || fail "the device is still being removed"
[ ! -e /sys/class/infiniband/rxe0 ] || fail "rxe0 is still there: $(cat /tmp/delete.log)"
GUEST
guest_target b --lun malloc:64M --id-ext 00000000000000aa --ioc-guid 00000000000000bb
guest_wait a load 240
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
eventually 120 sessions_are 1 || fail "the initiator is not back"
GUEST
guest a <<'GUEST'
fio_verify after --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=8m
logout
kernel_is_well
GUEST
guest_target_ends b
