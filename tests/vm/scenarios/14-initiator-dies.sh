# initiator-dies: a guest is cut off under load; a new one with the same identity logs in at once; the old session ends in time.
boot a
serve --lun malloc:64M --dead-after 10s
guest a <<'GUEST'
login
GUEST
guest_start a load <<'GUEST'
fio_verify load --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=64m
GUEST
under_way a load "the guest was cut"
cut_guest a
boot a
guest a <<'GUEST'
begun=$SECONDS
login
[ $((SECONDS - begun)) -le 10 ] || fail "the login took $((SECONDS - begun)) s"
fio_verify again --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=8m
GUEST
one_session() { [ "$(sessions)" = 1 ]; }
eventually 20 one_session || fail "not one session, but $(rpc srp_get_sessions)"
cut_guest a
no_sessions 25
note "an idle session of a dead initiator is gone within its deadline"
stop_target
