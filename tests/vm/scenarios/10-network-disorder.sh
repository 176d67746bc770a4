# network-disorder: packets reordered, doubled and delayed with jitter, from both sides and by srpoll's own --fault.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE" --fault drop=0.5%,dup=1%,reorder=1%,corrupt=0.2%,seed=7

GUEST_TIMEOUT=400 guest a <<'GUEST'
# Without registration, for the reason that network-loss gives: each packet out of order ends rxe's queue pair else.
load_srp never_register=Y
login
patient
fio_verify own-faults --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=6m
netem_both delay 2ms 1ms reorder 25% 50%
fio_verify reorder --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=8m --size=4m
netem_both duplicate 5%
fio_verify duplicate --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=16m --size=4m
netem_both delay 10ms 8ms
fio_verify jitter --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=24m --size=4m
netem_off
echo "reconnects: $(reconnects)"
rxe_counters
keep_image 0
logout
kernel_is_well
GUEST
note "$(grep -ho 'reconnects: .*' "$RUN"/share/a/*.log)"
no_sessions 20
stop_target
same_as_guest "$FILE" 0
