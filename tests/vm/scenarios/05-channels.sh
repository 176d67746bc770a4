# channels: ch_count 1, 2, 4 with as many CPUs, on two shards; a lower limit of the target leaves what it grants.
SMP=4 boot a
serve --lun malloc:64M --cores any,any

# with COUNT : logs in with so many channels and moves data over them.
with() {
    step "ch_count=$1"
    guest a COUNT="$1" WANTED="$WANTED" <<'GUEST'
modprobe -r ib_srp 2>/dev/null || true
load_srp ch_count=$COUNT
login
expect "ch_count of the host" "$(cat /sys/class/srp_host/*/device/scsi_host/host*/ch_count)" "$WANTED"
fio_verify "ch$COUNT" --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=4k-32k --iodepth=8 --numjobs=4 --size=2m --offset_increment=8m
GUEST
    expect "channels of the session" "$(channels)" "$WANTED"
    guest a <<'GUEST'
logout
kernel_is_well
GUEST
    no_sessions
}
channels() { rpc srp_get_sessions | python3 -c 'import json,sys; print(sum(len(s["channels"]) for s in json.load(sys.stdin)))'; }

for count in 1 2 4; do WANTED=$count with $count; done
stop_target

step "a target that grants two channels"
serve --lun malloc:64M --cores any,any --max-channels 2
WANTED=2 with 4
stop_target
