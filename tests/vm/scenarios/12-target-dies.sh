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
has_session() { [ "$(sessions)" -ge 1 ]; }
listed() { grep -q remote_id "$RUN/state/connections.json"; }

# die_and_return HOW WORDS : kills the target under load; with HOW "forget" its successor does not know whom it owes
# a DREQ, so that only the initiator's own timers help.
die_and_return() {
    step "$2"
    guest_start a "load-$1" <<'GUEST'
fio_verify load --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=32m
GUEST
    under_way a "load-$1" "the target was killed"
    eventually 5 listed || fail "the state folder does not know the connection: $(ls "$RUN/state")"
    kill_target
    [ "$1" != forget ] || rm "$RUN/state/connections.json"
    sleep 1
    begin
    expect "the line printed after the restart" "$(cat "$RUN/share/add_target")" "$BEFORE"
    local restarted=$SECONDS
    # Left to itself kernel 6.1 notices only by its SCSI timers, and takes about two minutes.
    eventually 240 has_session || fail "the initiator is not back after 240 s"
    note "$2: resumed $((SECONDS - restarted)) s after the restart"
    guest_wait a "load-$1"
}
die_and_return remember "old peers told by DREQ"
log_says '1 of 1 connections that the process before left open are being ended'
die_and_return forget "nobody told"
guest a <<'GUEST'
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
stop_target
! listed || fail "a target that stopped still owes its peers"
same_as_guest "$FILE" 0
