# Helpers for the host part of a scenario. The runner (`inside`) has made a network namespace with the bridge
# br0, 10.99.0.1 and fd99::1, sourced this file, and runs the scenario with `set -Eeuo pipefail`.
#
# RUN     the folder of this run: files, state, logs; kept only if the run fails
# SRPOLL  the binary under test
# shellcheck shell=bash

TARGET_IP=10.99.0.1
TARGET_IP6=fd99::1
RPC=$RUN/rpc.sock
TARGET_PID=
TARGET_LOG=$RUN/target.log
declare -A GUEST_PID=()
GUEST_STEP=0

fail() { echo "FAIL: $*" >&2; exit 1; }
step() { echo "--- $*" >&2; }
# note TEXT : one line for the table of results.
note() { echo "$*" >>"$RUN/notes"; echo "    $*" >&2; }
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"; }
eventually() { # eventually SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep .1
    done
}

# --- the target

# new_file NAME SIZE : a file of zeroes to serve; prints its path.
new_file() { truncate -s "$2" "$RUN/$1" && echo "$RUN/$1"; }

# serve ARGUMENTS... : starts the target and waits for `ready`. What a scenario leaves out gets a default:
# the address, everybody allowed, a state folder of this run, and patience with guests that stall.
serve() {
    local given=" $* " args=()
    [[ $given == *" --soft "* ]] || args+=(--soft $TARGET_IP)
    [[ $given == *" --allow "* ]] || args+=(--allow any)
    [[ $given == *" --dead-after "* ]] || args+=(--dead-after 60s)
    [[ $given == *" --idle "* ]] || args+=(--idle sleep)
    # Of the target before this one: its "ready" must not be taken for ours.
    rm -f "$RUN/target.out"
    echo "+ srpoll serve ${args[*]} $*" >>"$TARGET_LOG"
    "$SRPOLL" serve --rpc "$RPC" --state "$RUN/state" "${args[@]}" "$@" >"$RUN/target.out" 2>>"$TARGET_LOG" 9>&- &
    TARGET_PID=$!
    eventually 20 target_is_ready || fail "the target printed no 'ready'; its log ends: $(tail -n 5 "$TARGET_LOG")"
    sed '/^ready$/,$d' "$RUN/target.out" >"$RUN/share/add_target"
    [ -s "$RUN/share/add_target" ] || fail "the target printed no add_target line"
}
target_is_ready() {
    kill -0 "$TARGET_PID" 2>/dev/null || fail "the target ended at once; its log ends: $(tail -n 5 "$TARGET_LOG")"
    grep -qsx ready "$RUN/target.out"
}
# kill_target : as a crash would.
kill_target() { kill -9 "$TARGET_PID" && { wait "$TARGET_PID" 2>/dev/null || true; } && TARGET_PID=; }
# stop_target [SECONDS] : SIGTERM; it must end by itself with status 0 within the time (12 s by default).
stop_target() {
    local rc=0 begun=$SECONDS
    kill -TERM "$TARGET_PID"
    eventually "${1:-12}" target_is_gone || fail "the target did not stop within ${1:-12} s of SIGTERM"
    wait "$TARGET_PID" || rc=$?
    expect "exit status of the target after SIGTERM" "$rc" 0
    TARGET_PID=
    echo "    target stopped in $((SECONDS - begun)) s" >&2
}
target_is_gone() { [ ! -d "/proc/$TARGET_PID" ] || grep -q '^State:.Z' "/proc/$TARGET_PID/status" 2>/dev/null; }
rpc() { "$SRPOLL" rpc --rpc "$RPC" "$@"; }
sessions() { rpc srp_get_sessions | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))'; }
# no_sessions [SECONDS] : waits until the target has none.
no_sessions() { eventually "${1:-10}" sh_eq sessions 0 || fail "sessions are still there: $(rpc srp_get_sessions)"; }
sh_eq() { [ "$($1)" = "$2" ]; }
# log_says PATTERN : the target's log has a line like that.
log_says() { grep -Eq -- "$1" "$TARGET_LOG" || fail "the target's log does not say /$1/"; }
# log_will_say PATTERN : within some seconds.
log_will_say() { eventually 15 grep -Eqs -- "$1" "$TARGET_LOG" || fail "the target's log does not come to say /$1/"; }
# counter NAME : a number of srp_get_stats, summed over the shards: something that is counted, or what there is of
# tasks, recv_posted, chunks_free.
counter() {
    rpc srp_get_stats | python3 -c 'import json, sys
print(sum(shard.get(sys.argv[1], shard["counters"].get(sys.argv[1])) for shard in json.load(sys.stdin)["shards"]))' "$1"
}
# holdings : what commands take of the target and must give back.
holdings() { echo "$(counter tasks) tasks, $(counter recv_posted) slots posted, $(counter chunks_free) chunks free"; }
# gave_all_back BASELINE : the holdings are (soon) what they were.
gave_all_back() { eventually 20 sh_eq holdings "$1" || fail "the target has $(holdings); before it had $1"; }

# --- guests

# boot NAME [KERNEL ARGUMENTS] : starts a guest (a or b). The first use of it waits until it is up.
# SMP and MEMORY (MiB) in the environment size it; GUEST_NICE (5) says how it yields to what else the machine does.
boot() {
    local name=$1 number
    shift
    case $name in a) number=11 ;; b) number=12 ;; *) fail "guests are called a and b" ;; esac
    if ! ip link show dev "tap-$name" >/dev/null 2>&1; then
        ip tuntap add dev "tap-$name" mode tap vnet_hdr
        # The default queue of 1000 packets drops RDMA bursts before a scenario means to.
        ip link set "tap-$name" master br0 mtu 9000 txqueuelen 20000 up
        tcpdump -Z root -i "tap-$name" -s 400 -B 16384 -C 40 -W 4 -w "$RUN/$name.pcap" \
            'udp port 4791 or arp or icmp6' 2>"$RUN/tcpdump-$name.log" 9>&- &
        echo $! >>"$RUN/captures"
    fi
    rm -rf "$RUN/share/$name"
    mkdir -p "$RUN/share/$name"
    mkfifo -m 600 "$RUN/$name.in" "$RUN/$name.out" 2>/dev/null || true
    local serial=(-serial "pipe:$RUN/$name")
    [[ " $* " != *" vm_shell=1 "* ]] || serial=(-serial mon:stdio)
    # no_timer_check: the boot test of the timer fails now and then when the host is busy.
    # TCG of QEMU 7.2 gets cmpxchg16b wrong, and the guest's allocator uses it: switch it off.
    local command=(qemu-system-x86_64 -M q35 -accel "tcg,thread=multi" -cpu "max,-cx16"
        -smp "${SMP:-1}" -m "${MEMORY:-1536}" -display none -nodefaults -no-reboot
        -kernel "$CACHE/vmlinux-$KERNEL" -initrd "$CACHE/initrd-$KERNEL"
        -append "console=ttyS0 panic=-1 mitigations=off no_timer_check quiet vm_name=$name vm_ip4=10.99.0.$number/24 vm_ip6=fd99::$number/64 $*"
        -serial "file:$RUN/console-$name.log" "${serial[@]}"
        -fsdev "local,id=root,path=$CACHE/rootfs,security_model=none,readonly=on,multidevs=remap"
        -device virtio-9p-pci,fsdev=root,mount_tag=root
        -fsdev "local,id=share,path=$RUN/share,security_model=none,multidevs=remap"
        -device virtio-9p-pci,fsdev=share,mount_tag=share
        -netdev "tap,id=n0,ifname=tap-$name,script=no,downscript=no,vhost=off"
        -device "virtio-net-pci,netdev=n0,mac=52:54:00:00:00:$number,romfile=")
    if [[ " $* " == *" vm_shell=1 "* ]]; then
        "${command[@]}"
        return
    fi
    nice -n "${GUEST_NICE:-5}" "${command[@]}" </dev/null >"$RUN/qemu-$name.log" 2>&1 9>&- &
    GUEST_PID[$name]=$!
}
guest_is_up() {
    [ -e "$RUN/share/$1/up" ] && return
    guest_alive "$1"
    return 1
}
guest_alive() { kill -0 "${GUEST_PID[$1]}" 2>/dev/null || fail "guest $1 ended by itself"; }
# cut_guest NAME : the guest's machine is gone in an instant, as by pulling its plug.
cut_guest() { kill -9 "${GUEST_PID[$1]}" && { wait "${GUEST_PID[$1]}" 2>/dev/null || true; } && unset "GUEST_PID[$1]"; }

# guest_start NAME ID [VAR=VALUE...] <script : runs the script in the guest in the background, under the name ID.
guest_start() {
    local name=$1 id=$2
    shift 2
    [ -n "${GUEST_PID[$name]:-}" ] || boot "$name"
    eventually 90 guest_is_up "$name" || fail "guest $name does not come up"
    {
        echo 'set -Eeuo pipefail'
        echo '. /share/lib-guest.sh'
        local v
        for v in "$@"; do printf '%s=%q\n' "${v%%=*}" "${v#*=}"; done
        cat
    } >"$RUN/share/$name/$id.sh"
    echo "$id" >"$RUN/$name.in"
}
# under_way NAME ID WHAT [SECONDS] : lets it run for a while (3 s): it must not have ended before WHAT happens.
under_way() {
    sleep "${4:-3}"
    [ ! -e "$RUN/share/$1/$2.rc" ] || fail "guest $1, $2: ended before $3"
}
guest_done() {
    [ -e "$RUN/share/$1/$2.rc" ] && return
    guest_alive "$1"
    return 1
}
# guest_wait NAME ID [SECONDS] : waits for it, shows what it printed, fails if it failed. 400 s unless told: when a
# guest stalls, rxe of kernel 6.1 may take a retransmission that nothing asked for, lose its queue pair by it, and be
# back only by the timers of SCSI, three minutes later.
guest_wait() {
    local name=$1 id=$2 seconds=${3:-400} rc=124 line
    if eventually "$seconds" guest_done "$name" "$id"; then rc=$(cat "$RUN/share/$name/$id.rc"); fi
    sed "s/^/    $name: /" "$RUN/share/$name/$id.log" >&2 2>/dev/null || true
    grep -hE '^fio ' "$RUN/share/$name/$id.log" >>"$RUN/fio" 2>/dev/null || true
    while read -r line; do note "$line"; done < <(sed -n 's/^fate: //p' "$RUN/share/$name/$id.log" 2>/dev/null)
    [ "$rc" != 124 ] || fail "guest $name, step $id: no end within $seconds s"
    [ "$rc" = 0 ] || fail "guest $name, step $id: status $rc"
}
# guest NAME [VAR=VALUE...] <script : runs it in the guest and waits. GUEST_TIMEOUT (seconds) in the environment.
guest() {
    local name=$1
    shift
    GUEST_STEP=$((GUEST_STEP + 1))
    guest_start "$name" "step$GUEST_STEP" "$@"
    guest_wait "$name" "step$GUEST_STEP" "${GUEST_TIMEOUT:-400}"
}
# guest_said NAME PATTERN : something that a guest printed in its latest step.
guest_said() { grep -Eq -- "$2" "$RUN/share/$1/step$GUEST_STEP.log" || fail "guest $1 did not say /$2/"; }

# same_as_guest FILE LUN : a served file, byte by byte, against what the guest's `keep_image LUN` read.
same_as_guest() {
    cmp "$1" "$RUN/share/lun$2.image" || fail "the file on the host is not what the guest reads from LUN $2"
    echo "    $(stat -c %s "$1") bytes compared with the file on the host" >&2
}
