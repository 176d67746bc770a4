# descriptors: every form of data buffer that ib_srp can send, and I/Os of 4 and 8 MiB.
boot a
serve --lun "uring:$(new_file disk 64M)" --lun malloc:64M

# with MODULE-PARAMETERS LOGIN-OPTIONS : the same reads and writes under another form of descriptors.
with() {
    step "ib_srp ${1:-(defaults)}; login ${2:-(defaults)}"
    guest a PARAMETERS="$1" OPTIONS="$2" <<'GUEST'
modprobe -r ib_srp 2>/dev/null || true
# shellcheck disable=SC2086 # words
load_srp $PARAMETERS
login "$OPTIONS"
dd if=/dev/urandom of=data bs=1M count=2 status=none
for lun in 0 1; do
    dev=$(disk $lun)
    for bs in 512 4k 8k 16k 64k 256k 1M; do
        dd if=data of="$dev" bs=$bs oflag=direct conv=notrunc count=2 seek=1 status=none
        dd if="$dev" bs=$bs iflag=direct count=2 skip=1 status=none | cmp -n $((2 * $(numfmt --from=iec ${bs^^}))) - data
    done
    fio_verify "forms" --filename="$dev" --direct=1 --rw=randwrite --bsrange=512-256k --iodepth=16 --offset=8m --size=4m
done
logout
kernel_is_well
GUEST
}
with "" ""
with "use_imm_data=N" ""
with "max_imm_data=512" ""
with "register_always=N" ""
with "never_register=Y use_imm_data=N" ""
with "never_register=Y cmd_sg_entries=1" ""
with "never_register=Y cmd_sg_entries=255" ""
with "never_register=Y cmd_sg_entries=4 indirect_sg_entries=64 allow_ext_sg=1" "cmd_sg_entries=4,allow_ext_sg=1,sg_tablesize=64"

step "I/Os of 4 and 8 MiB, and a user's scattered pages by SG_IO"
guest a <<'GUEST'
modprobe -r ib_srp
load_srp indirect_sg_entries=2048 allow_ext_sg=1
login max_sect=16384,cmd_sg_entries=255,allow_ext_sg=1,sg_tablesize=2048
dev=$(disk 0)
queue=/sys/block/${dev##*/}/queue
cat "$queue/max_hw_sectors_kb" >"$queue/max_sectors_kb"
dd if=/dev/urandom of=data bs=8M count=2 status=none
for size in 4M 8M; do
    before=$(awk '{print $5}' "/sys/block/${dev##*/}/stat")
    dd if=data of="$dev" bs=$size count=2 oflag=direct conv=notrunc status=none
    echo "writes of $size: $(($(awk '{print $5}' "/sys/block/${dev##*/}/stat") - before)) commands for 2"
    dd if="$dev" bs=$size count=2 iflag=direct status=none | cmp -n "$((2 * $(numfmt --from=iec $size)))" - data
done
sg=$(sg_of "$dev")
sg_dd if=data of="$sg" bs=512 bpt=1024 dio=1 2>/dev/null
sg_dd if="$sg" of=back bs=512 bpt=1024 count=32768 dio=1 2>/dev/null
cmp back data
logout
kernel_is_well
GUEST
no_sessions
stop_target
