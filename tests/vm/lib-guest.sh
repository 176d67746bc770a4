# Helpers for the guest part of a scenario. Every guest script begins with `set -Eeuo pipefail` and this file.
# shellcheck shell=bash

ADD_TARGET=/sys/class/infiniband_srp/srp-rxe0-1/add_target

trap 'echo "FAIL: status $? of: $BASH_COMMAND"' ERR
fail() { trap - ERR; echo "FAIL: $*"; exit 1; }
# eventually SECONDS COMMAND... : waits until the command succeeds.
eventually() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep .1
    done
}
# expect WHAT GOT WANTED
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"; }

# says PATTERN COMMAND... : the command prints a line like that (a pipe to `grep -q` might end it too early).
says() {
    local pattern=$1 output
    shift
    output=$("$@" 2>&1) || true
    grep -qiE -- "$pattern" <<<"$output" || fail "$* does not say /$pattern/ but: $output"
}

# rxe_up : makes rxe0 on eth0 and waits until its port is active.
rxe_up() {
    [ -e /sys/class/infiniband/rxe0 ] && return
    modprobe -a rdma_rxe ib_umad rdma_ucm ib_uverbs
    rdma link add rxe0 type rxe netdev eth0
    eventually 10 grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state || fail "rxe0 does not become active"
}
# load_srp [MODULE PARAMETERS] : the initiator, with what a distribution's udev would have loaded.
load_srp() { modprobe -a sd_mod sg && modprobe scsi_transport_srp && modprobe ib_srp "$@"; }

# add_target_line [N] : the Nth line that the target printed (the first one by default).
add_target_line() { sed -n "${1:-1}p" /share/add_target; }
# login [OPTIONS [N]] : writes the Nth printed line, with more options behind it (such as queue_size=8).
login() {
    rxe_up
    [ -e /sys/module/ib_srp ] || load_srp
    eventually 5 test -e $ADD_TARGET || fail "no $ADD_TARGET"
    local line
    line=$(add_target_line "${2:-1}")
    [ -n "$line" ] || fail "the target printed no line"
    # ib_srp keeps a target that was just deleted on its list for a moment after its SCSI host is gone, and
    # refuses the same one meanwhile (srp_remove_target, srp_conn_unique).
    local try why=
    for try in $(seq 50); do
        why=$({ echo "$line${1:+,$1}" >$ADD_TARGET; } 2>&1) && return
        [[ $why == *"File exists"* ]] || break
        sleep .2
    done
    echo "login, try $try: $why"
    return 1
}
# logout : deletes every remote port and waits until their disks are gone.
logout() {
    local p
    for p in /sys/class/srp_remote_ports/*; do
        [ -e "$p/delete" ] && echo 1 >"$p/delete"
    done
    eventually 30 no_disks || fail "disks are still there after logging out: $(lsscsi)"
    eventually 30 no_hosts || fail "SCSI hosts are still there after logging out"
}
no_disks() { ! compgen -G '/sys/class/scsi_disk/*' >/dev/null; }
no_hosts() { ! compgen -G '/sys/class/srp_host/*' >/dev/null; }
# disk LUN [HOST INDEX] : the device node of a LUN (on the Nth SCSI host of ours), once it is there.
disk() {
    local glob name
    glob="/sys/class/scsi_disk/*:0:0:$1/device/block/*"
    eventually 30 compgen -G "$glob" >/dev/null || fail "no disk for LUN $1: $(lsscsi)"
    # shellcheck disable=SC2086 # a pattern
    name=$(ls -d $glob | sort -V | sed -n "${2:-1}p")
    [ -n "$name" ] || fail "no disk for LUN $1 on host ${2:-1}: $(lsscsi)"
    eventually 10 test -b "/dev/${name##*/}"
    # A disk that is just being probed may still be of size 0.
    eventually 10 grep -qv '^0$' "/sys/block/${name##*/}/size"
    echo "/dev/${name##*/}"
}
# sg_of DISK : its SCSI generic node.
sg_of() { echo "/dev/$(ls "/sys/block/${1##*/}/device/scsi_generic")"; }

# fio_run NAME ARGUMENTS... : fio must end without an error; says what it did on one line the host can count:
# "fio NAME: R read W written in N s". Errors and the last lines go to the log.
fio_run() {
    local name=$1
    shift
    local out=/tmp/fio-$name.txt rc=0 begun=$SECONDS
    fio --name="$name" --ioengine=libaio --group_reporting "$@" >"$out" 2>&1 || rc=$?
    if [ $rc != 0 ] || ! grep -q 'err= 0' "$out"; then
        tail -n 40 "$out"
        fail "fio $name ended with status $rc"
    fi
    sed -n "s/.*issued rwts: total=\([0-9]*\),\([0-9]*\),.*/fio $name: \1 read \2 written in $((SECONDS - begun)) s/p" "$out"
}
# fio_verify NAME ARGUMENTS... : writes or mixes with a crc32c in every block, and reads it back.
fio_verify() { fio_run "$@" --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_backlog=0; }

# keep_image LUN : what the disk reads back as, for `same_as_guest` on the host.
keep_image() { dd if="$(disk "$1")" of="/share/lun$1.image" bs=1M iflag=direct status=none; }

# kernel_is_well : no oops, no warning, no stuck task in this guest's log.
kernel_is_well() {
    ! dmesg | grep -E 'BUG:|Oops|general protection|Kernel panic|blocked for more than' ||
        fail "the guest's kernel complains (above)"
}
# rxe_counters : the retransmissions that rxe counted, for the log.
rxe_counters() { (cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -HE '^[1-9]' ./* | tr '\n' ' ') || true; echo; }

# patient : a lost session is restored for as long as it takes, and no I/O fails meanwhile.
patient() {
    local p
    for p in /sys/class/srp_remote_ports/*; do
        echo 2 >"$p/reconnect_delay"
        echo off >"$p/fast_io_fail_tmo"
        echo off >"$p/dev_loss_tmo"
    done
}
# reconnects : how often the initiator had to restore a session, by its own log.
reconnects() { dmesg | grep -c 'ib_srp: reconnect succeeded\|reconnect succeeded' || true; }
# fate BEFORE WHAT : says what became of the session, on a line "fate: ..." that the host shows among the results;
# BEFORE is what `reconnects` said.
fate() {
    local times=$(($(reconnects) - $1))
    case $times in
    0) echo "fate: $2: the session survived" ;;
    *) echo "fate: $2: the session was lost and came back, $times times" ;;
    esac
}

# netem_both WHAT... : a fault on both directions of eth0 (the incoming one through an ifb device).
netem_both() {
    modprobe -a sch_netem ifb act_mirred cls_matchall sch_ingress
    ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb
    ip link set ifb0 mtu 9000 txqueuelen 20000 up
    tc qdisc show dev eth0 | grep -q ingress ||
        { tc qdisc add dev eth0 handle ffff: ingress && tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0; }
    tc qdisc replace dev eth0 root netem limit 20000 "$@"
    tc qdisc replace dev ifb0 root netem limit 20000 "$@"
}
netem_off() {
    echo "netem dropped $(tc -s qdisc show | awk '$1 == "qdisc" {netem = $2 == "netem"} netem && $1 == "Sent" {sub(",", "", $7); n += $7} END {print n + 0}') packets"
    tc qdisc del dev eth0 root
    tc qdisc del dev ifb0 root
}
