# target-dies: kill -9 under verified load, restarted with the same identity: the initiator resumes, no byte is wrong.
boot a
FILE=$(new_file disk 64M)
begin() { serve --lun "uring:$FILE" --dead-after 10s; }
begin
BEFORE=$(cat "$RUN/share/add_target")

guest a <<'GUEST'
login
patient
GUEST
guest_start a load <<'GUEST'
fio_verify load --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=32m
GUEST
sleep 3
[ ! -e "$RUN/share/a/load.rc" ] || fail "the load ended before the target was killed"
kill_target
sleep 1
begin
expect "the line printed after the restart" "$(cat "$RUN/share/add_target")" "$BEFORE"
RESTARTED=$SECONDS
has_session() { [ "$(sessions)" -ge 1 ]; }
# Kernel 6.1 notices only by its SCSI timers, and takes about two minutes.
eventually 240 has_session || fail "the initiator is not back after 240 s"
note "resumed $((SECONDS - RESTARTED)) s after the restart"
guest_wait a load 240
guest a <<'GUEST'
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
stop_target
same_as_guest "$FILE" 0
