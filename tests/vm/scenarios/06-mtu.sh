# mtu: path MTU 1024 (network of 1500) and 4096 (network of 4200).
serve --lun malloc:64M
for network in 1500 4200; do
    boot a vm_mtu=$network
    guest a NETWORK=$network <<'GUEST'
login
ibv_devinfo | grep active_mtu
case $NETWORK in 1500) want=1024 ;; *) want=4096 ;; esac
expect "active MTU" "$(ibv_devinfo | sed -n 's/.*active_mtu:[[:space:]]*\([0-9]*\).*/\1/p')" $want
fio_verify "mtu$want" --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-256k --iodepth=16 --size=16m
logout
kernel_is_well
GUEST
    no_sessions
    cut_guest a
done
stop_target
