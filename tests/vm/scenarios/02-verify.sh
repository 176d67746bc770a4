# verify: fio with crc32c on a file and on memory, 512 B to 1 MiB, direct and buffered; the file then compared byte by byte.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE" --lun malloc:64M

guest a <<'GUEST'
login
for lun in 0 1; do
    dev=$(disk $lun)
    fio_verify "lun$lun-512"      --filename="$dev" --direct=1 --rw=randwrite --bs=512 --iodepth=16 --size=1m
    fio_verify "lun$lun-4k-qd1"   --filename="$dev" --direct=1 --rw=randwrite --bs=4k --iodepth=1 --offset=1m --size=1m
    fio_verify "lun$lun-4k-qd62"  --filename="$dev" --direct=1 --rw=randrw --rwmixread=50 --bs=4k --iodepth=62 --offset=4m --size=8m
    fio_verify "lun$lun-sizes"    --filename="$dev" --direct=1 --rw=randwrite --bsrange=512-128k --iodepth=16 --offset=12m --size=16m
    fio_verify "lun$lun-1m"       --filename="$dev" --direct=1 --rw=write --bs=1m --iodepth=8 --offset=28m --size=20m
    fio_verify "lun$lun-buffered" --filename="$dev" --direct=0 --rw=randwrite --bs=4k --iodepth=4 --offset=48m --size=8m --end_fsync=1
    rxe_counters
done
# What the disk reads back as, for the comparison on the host.
keep_image 0
logout
kernel_is_well
GUEST
no_sessions
stop_target

same_as_guest "$FILE" 0
