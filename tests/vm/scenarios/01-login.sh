# login: the printed line logs in, the disk is as configured, logging out leaves no session.
boot a
serve --lun malloc:64M --lun "3=uring:$(new_file disk 96M)"

guest a <<'GUEST'
login
expect "size of LUN 0 in sectors" "$(cat /sys/block/"$(basename "$(disk 0)")"/size)" $((64 * 2048))
expect "size of LUN 3 in sectors" "$(cat /sys/block/"$(basename "$(disk 3)")"/size)" $((96 * 2048))
sg_inq "$(disk 0)"
sg_readcap -l "$(disk 0)"
sg_luns "$(disk 0)" | tee luns
grep -q '0003000000000000' luns || fail "REPORT LUNS does not list LUN 3"
for page in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do sg_vpd --page=$page "$(disk 0)" >/dev/null || fail "VPD page $page"; done
naa() { sg_vpd --page=0x83 "$1" | grep -oE '0x[0-9a-f]{16}' | head -n1; }
[ -n "$(naa "$(disk 0)")" ] || fail "LUN 0 has no NAA name"
[ "$(naa "$(disk 0)")" != "$(naa "$(disk 3)")" ] || fail "two LUNs share one NAA name"

# A first READ and WRITE, compared.
dd if=/dev/urandom of=data bs=64k count=4 status=none
dd if=data of="$(disk 0)" bs=64k seek=2 oflag=direct conv=notrunc status=none
dd if="$(disk 0)" bs=64k skip=2 count=4 iflag=direct status=none | cmp - data
GUEST
expect "sessions while logged in" "$(sessions)" 1

guest a <<'GUEST'
logout
kernel_is_well
GUEST
no_sessions
stop_target
