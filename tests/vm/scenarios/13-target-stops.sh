# target-stops: SIGTERM under load drains within the deadline; a new target with the same identity takes the load on.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE" --drain-timeout 8s
guest a <<'GUEST'
login
patient
GUEST
guest_start a load <<'GUEST'
fio_verify load --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=32m
GUEST
under_way a load "the target was stopped"
stop_target 12
serve --lun "uring:$FILE"
BEGUN=$SECONDS
guest_wait a load
note "load ended $((SECONDS - BEGUN)) s after the restart"
guest a <<'GUEST'
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
stop_target
same_as_guest "$FILE" 0
