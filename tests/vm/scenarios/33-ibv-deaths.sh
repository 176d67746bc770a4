# ibv-deaths: the target killed under load and back: the initiator comes back; the initiator cut off: the target lets go in time.
. "$HERE/lib-ibv.sh"
boot a
boot b
guest_target b --lun malloc:64M --dead-after 10s --id-ext 00000000000000aa --ioc-guid 00000000000000bb
guest a <<'GUEST'
login
patient
GUEST
guest_start a load <<'GUEST'
# A host that answers and has no target refuses the reconnect, whereupon ib_srp fails what waits.
fio --name=load --ioengine=libaio --filename="$(disk 0)" --direct=1 --rw=randread --bsrange=4k-64k --iodepth=8 --size=48m >load.log || tail -n 3 load.log
GUEST
under_way a load "the target was killed" 4
step "kill the target"
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
sessions_are 1
target_kill
sleep 1
GUEST
guest_target b --lun malloc:64M --dead-after 10s --id-ext 00000000000000aa --ioc-guid 00000000000000bb
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
eventually 200 sessions_are 1 || fail "the initiator is not back"
GUEST
guest_wait a load 240
guest a <<'GUEST'
fio_verify after --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=8m
kernel_is_well
GUEST
step "cut the initiator off"
cut_guest a
guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions 30
log_says 'silent|work request failed'
target_down 20
kernel_is_well
GUEST
