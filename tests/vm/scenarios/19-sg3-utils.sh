# sg3-utils: sg_inq sg_vpd sg_luns sg_readcap sg_turs sg_modes sg_sync sg_requests sg_start sg_unmap, and residuals by sg_raw.
boot a
serve --lun malloc:64M --lun "uring:$(new_file disk 64M),ro"
guest a <<'GUEST'
login
dev=$(disk 0)
sg_turs "$dev"
sg_requests "$dev"
sg_inq "$dev"
sg_inq --cmddt "$dev" >/dev/null 2>&1 && fail "INQUIRY with CmdDt was served"
for page in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do sg_vpd --page=$page "$dev"; done
! sg_vpd --page=0xc7 "$dev" 2>/dev/null || fail "an unknown VPD page was served"
sg_luns "$dev"
sg_readcap "$dev"
sg_readcap --16 "$dev"
for page in 0x08 0x0a 0x3f; do sg_modes --page=$page "$dev"; sg_modes --six --page=$page "$dev" >/dev/null; done
sg_sync "$dev"
sg_sync --16 "$dev" 2>/dev/null || true # older sg3-utils have no such flag
sg_start --start "$dev"

# A buffer longer than the answer leaves a residual; a shorter one cuts it.
says 'Received 96 bytes' sg_raw -r 252 "$dev" 12 00 00 00 fc 00
says 'Received 4 bytes' sg_raw -r 4 "$dev" 12 00 00 00 04 00

# Unknown operation codes, bad fields, and addresses beyond the end.
says 'Invalid command operation code' sg_raw "$dev" c0 00 00 00 00 00
says 'Logical block address out of range' sg_raw -r 1024 "$dev" 28 00 00 01 ff ff 00 00 02 00

# Unmapped blocks read as zeroes, and their neighbours stay: by UNMAP itself, then by a discard of the block layer.
dd if=/dev/urandom of="$dev" bs=4k count=64 oflag=direct conv=notrunc 2>/dev/null
dd if="$dev" of=/tmp/before bs=4k count=64 iflag=direct 2>/dev/null
sg_unmap --force --lba=8 --num=8 "$dev"
blkdiscard --offset 65536 --length 65536 "$dev"
dd if=/dev/zero of=/tmp/before bs=4k seek=1 count=1 conv=notrunc 2>/dev/null
dd if=/dev/zero of=/tmp/before bs=4k seek=16 count=16 conv=notrunc 2>/dev/null
dd if="$dev" bs=4k count=64 iflag=direct 2>/dev/null | cmp - /tmp/before || fail "other blocks than the unmapped ones are zeroes"

# The other LUN is read-only.
says 'wp=1' sg_modes "$(disk 1)"
! dd if=/dev/zero of="$(disk 1)" bs=4k count=1 oflag=direct conv=notrunc 2>/dev/null || fail "a read-only LUN was written"
logout
kernel_is_well
GUEST
no_sessions
stop_target
