# ipv6: a global address, and a link-local one with its scope and src=.
ip addr add fe80::1/64 dev br0 nodad
boot a
serve --soft $TARGET_IP6 fe80::1%br0 --lun malloc:64M

guest a <<'GUEST'
cat /share/add_target
login
fio_verify routed --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-128k --iodepth=16 --size=8m
logout

# What the target prints for a link-local address has placeholders for what only this host knows.
own=$(ip -6 -o addr show dev eth0 scope link | awk '{sub("/.*", "", $4); print $4; exit}')
sed -i "2s/<interface>/eth0/g; 2s/<address>/$own/" /share/add_target
login "" 2
fio_verify linklocal --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-128k --iodepth=16 --size=8m
logout
kernel_is_well
GUEST
no_sessions
stop_target
