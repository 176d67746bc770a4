# blackout: no packet at all for 5 s and for 60 s under verified load; the session survives or is back, and it is said which.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE"
guest a <<'GUEST'
login
patient
GUEST
for seconds in 5 60; do
    guest_start a "load$seconds" SECONDS_DARK=$seconds <<'GUEST'
before=$(reconnects)
fio_verify "dark$SECONDS_DARK" --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=16m
fate "$before" "$SECONDS_DARK s without a packet"
GUEST
    under_way a "load$seconds" "the black-out" 2
    ip link set tap-a down
    sleep $seconds
    ip link set tap-a up
    guest_wait a "load$seconds"
done
guest a <<'GUEST'
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
stop_target
same_as_guest "$FILE" 0
