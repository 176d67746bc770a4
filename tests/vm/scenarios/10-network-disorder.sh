# network-disorder: packets reordered, doubled and delayed with jitter, from both sides and by srpoll's own --fault.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE" --fault drop=0.5%,dup=1%,reorder=1%,corrupt=0.2%,seed=7

guest a <<'GUEST'
# Without registration, for the reason that network-loss gives: each packet out of order ends rxe's queue pair else.
load_srp never_register=Y
login
patient
before=$(reconnects)
fio_verify own-faults --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=4m
fate "$before" "loss, doubles, disorder and wrong bits by srpoll's --fault"
before=$(reconnects)
# RC takes packets in order only, and goes back to the first one that is missing: a burst that arrives shuffled costs a
# round trip, or a time-out, for each of its packets. So little data, in small pieces.
netem_both delay 2ms reorder 5% 25%
fio_verify reorder --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-8k --iodepth=8 --offset=8m --size=512k
netem_both duplicate 5%
fio_verify duplicate --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --offset=16m --size=2m
netem_both delay 4ms 3ms
fio_verify jitter --filename="$(disk 0)" --direct=1 --rw=randwrite --bs=512 --iodepth=2 --offset=24m --size=48k
netem_off
fate "$before" "reordering, doubles and jitter by netem"
rxe_counters
keep_image 0
logout
kernel_is_well
GUEST
no_sessions 20
note "$(counter faults) packets dropped, doubled, held back or corrupted by --fault"
stop_target
same_as_guest "$FILE" 0
