# compare: the same initiator against srpoll on the host and against LIO's ib_srpt in a second guest; both and their ratio.
#
# No scenario of `scripts/vm all`: it passes or fails on what is read, never on how fast. Under emulation the figures
# mean nothing by themselves; the initiator's guest is the bottleneck, and LIO's guest shares the machine with it.
boot a vm_mtu=4200
boot b vm_mtu=4200
serve --lun malloc:64M

guest_start b lio <<'GUEST'
rxe_up
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
modprobe -a configfs target_core_mod
modprobe ib_srpt srpt_service_guid=0x0002c90300000001
target=/sys/kernel/config/target
# 64 MiB in memory, as the other side has.
mkdir -p $target/core/rd_mcp_0/ram
echo rd_pages=16384 >$target/core/rd_mcp_0/ram/control
echo 1 >$target/core/rd_mcp_0/ram/enable
mkdir $target/srpt
echo 5555 >$target/srpt/discovery_auth/rdma_cm_port
gid=$(cat /sys/class/infiniband/rxe0/ports/1/gids/0)
port=$target/srpt/${gid#*:*:*:*:}
# ib_srpt has no demo mode, and looks for a login by RDMA-CM under the address that it came to.
acl=$port/tpg1/acls/10.99.0.12
mkdir -p "$port/tpg1/lun/lun_0" "$acl/lun_0"
ln -s $target/core/rd_mcp_0/ram "$port/tpg1/lun/lun_0/ram"
ln -s "$port/tpg1/lun/lun_0" "$acl/lun_0/ram"
echo 1 >"$port/tpg1/enable"
GUEST
guest_wait b lio 90
LIO=id_ext=0002c90300000001,ioc_guid=0002c90300000001,dest=10.99.0.12:5555

# measure WHO LINE : four figures of the target behind LINE, on lines "measured WHO WHAT VALUE".
measure() {
    GUEST_TIMEOUT=120 guest a WHO="$1" LINE="$2" <<'GUEST'
add_target_line() { echo "$LINE"; } # in place of what srpoll printed
login
dev=$(disk 0)
fio_verify "$WHO" --filename="$dev" --direct=1 --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=8m
measure() { # measure WHAT FIELD ARGUMENTS... : a field of fio's terse output, version 3
    local what=$1 field=$2 line
    shift 2
    line=$(fio --name="$what" --minimal --terse-version=3 --ioengine=libaio --filename="$dev" --direct=1 --size=64m \
        --time_based --runtime=8 "$@" | grep '^3;')
    expect "error of fio" "$(cut -d';' -f5 <<<"$line")" 0
    echo "measured $WHO $what $(cut -d';' -f"$field" <<<"$line")"
}
measure 4k-randread-qd32-iops 8 --rw=randread --bs=4k --iodepth=32
measure 256k-read-qd8-kib/s 7 --rw=read --bs=256k --iodepth=8
logout
kernel_is_well
GUEST
    grep -h '^measured ' "$RUN/share/a/step$GUEST_STEP.log" >>"$RUN/measured"
}
# In turns, since what else the machine does changes.
for _ in 1 2; do
    measure LIO "$LIO"
    measure srpoll "$(cat "$RUN/share/add_target")"
done
while read -r line; do note "$line"; done < <(awk '
    {sum[$2, $3] += $4; count[$2, $3]++; what[$3]}
    END {
        for (w in what) {
            lio = sum["LIO", w] / count["LIO", w]; ours = sum["srpoll", w] / count["srpoll", w]
            printf "%s: srpoll %d, LIO %d, ratio %.2f\n", w, ours, lio, ours / lio
        }
    }' "$RUN/measured" | sort)
no_sessions
stop_target
