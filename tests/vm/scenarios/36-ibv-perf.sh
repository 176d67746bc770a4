# ibv-perf: srpoll perf verifies between guests, with libibverbs on both sides, and on one side with soft on the other.
. "$HERE/lib-ibv.sh"
boot a
boot b

# between INITIATOR-FLAG ADDRESS TARGET-FLAGS...
between() {
    local flag=$1 address=$2
    shift 2
    step "perf $flag $address against serve $*"
    guest_target b --lun malloc:16M "$@"
    GUEST_TIMEOUT=240 guest a FLAG="$flag" ADDRESS="$address" <<'GUEST'
. /share/lib-ibv-guest.sh
cp /share/srpoll /tmp/srpoll
ulimit -l unlimited
if [ "$FLAG" = --ibv ]; then
    rxe_up
else
    rxe_down
fi
for channels in 1 2; do
    /tmp/srpoll perf --target 10.99.0.12 "$FLAG" "$ADDRESS" --rw randrw --bs 16k --qd 8 --channels $channels \
        --ios 1500 --verify --overwrite | tee perf.log
    grep -q ' 0 errors$' perf.log
done
# Longer than one packet and one chunk, and a large block both ways.
/tmp/srpoll perf --target 10.99.0.12 "$FLAG" "$ADDRESS" --rw randrw --bs 1M --qd 2 --ios 30 --verify --overwrite
GUEST
    guest b <<'GUEST'
. /share/lib-ibv-guest.sh
no_sessions
target_down
rxe_down
kernel_is_well
GUEST
}
between --ibv 10.99.0.11 --ibv 10.99.0.12
between --local 10.99.0.11 --ibv rxe0/1
between --ibv 10.99.0.11 --soft 10.99.0.12
