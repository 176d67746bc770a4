# ibv-verify: the target on libibverbs: fio with crc32c, forms of descriptors, one, two and four channels on two shards.
. "$HERE/lib-ibv.sh"
SMP=4 boot a
SMP=2 boot b
guest_target b --lun malloc:64M --cores any,any

# with MODULE-PARAMETERS LOGIN-OPTIONS CHANNELS
with() {
    step "ib_srp ${1:-(defaults)}; login ${2:-(defaults)}"
    GUEST_TIMEOUT=300 guest a PARAMETERS="$1" OPTIONS="$2" <<'GUEST'
modprobe -r ib_srp 2>/dev/null || true
# shellcheck disable=SC2086 # words
load_srp $PARAMETERS
login "$OPTIONS"
dev=$(disk 0)
dd if=/dev/urandom of=data bs=1M count=2 status=none
for bs in 512 8k 64k 1M; do
    dd if=data of="$dev" bs=$bs oflag=direct conv=notrunc count=2 seek=1 status=none
    dd if="$dev" bs=$bs iflag=direct count=2 skip=1 status=none | cmp -n $((2 * $(numfmt --from=iec ${bs^^}))) - data
done
fio_verify forms --filename="$dev" --direct=1 --rw=randwrite --bsrange=512-128k --iodepth=16 --offset=8m --size=4m
GUEST
    guest b CHANNELS="$3" <<'GUEST'
. /share/lib-ibv-guest.sh
expect "channels" "$(channels)" "$CHANNELS"
GUEST
    guest a <<'GUEST'
logout
kernel_is_well
GUEST
    guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions
GUEST
}
guest a <<'GUEST'
rxe_up
load_srp
GUEST
with "ch_count=1" "" 1
with "ch_count=2" "" 2
with "ch_count=4" "" 4
with "ch_count=1 never_register=Y use_imm_data=N cmd_sg_entries=255" "" 1
with "ch_count=1 never_register=Y cmd_sg_entries=4 indirect_sg_entries=64 allow_ext_sg=1" "cmd_sg_entries=4,allow_ext_sg=1,sg_tablesize=64" 1
guest_target_ends b
