# two-initiators: two guests on one shared LUN, each in its half, and on a LUN of its own.
boot a
boot b
serve --lun malloc:64M --lun malloc:32M --lun malloc:32M --cores any,any
for guest in a b; do
    guest_start $guest load NAME=$guest <<'GUEST'
case $NAME in a) half=0 own=1 ;; b) half=32m own=2 ;; esac
login
fio_verify "shared-$NAME" --filename="$(disk 0)" --direct=1 --rw=randrw --bsrange=512-64k --iodepth=16 --offset=$half --size=8m
fio_verify "own-$NAME" --filename="$(disk $own)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=8m
touch /share/$NAME.done
GUEST
done
guest_wait a load
guest_wait b load
expect "sessions" "$(sessions)" 2

step "what one wrote, the other reads"
guest a <<'GUEST'
dd if=/dev/urandom of=/share/data bs=64k count=8 status=none
dd if=/share/data of="$(disk 0)" bs=64k oflag=direct conv=notrunc status=none
GUEST
guest b <<'GUEST'
dd if="$(disk 0)" bs=64k count=8 iflag=direct status=none | cmp - /share/data
logout
kernel_is_well
GUEST
guest a <<'GUEST'
logout
kernel_is_well
GUEST
no_sessions
stop_target
