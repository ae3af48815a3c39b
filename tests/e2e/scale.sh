#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# scale.sh - run in the build directory, after `make`: complete tests beyond one process and one machine.
#
#   1  tensor-parallel ranks on the host: what they select, and 200 deaths
#   2  two daemons in network namespaces of their own, and a redis-server between them: shared prefixes, damage, kills,
#      a slow store; and the time to the first token of a prompt of 8k tokens, read and fetched; with
#      SKV_TEST_NIXL=/path/to/libnixl_capi.so the same by NIXL
#   3  16 tenants, one of them hostile (in the same program)
#   4  a trace of requests, replayed and simulated
#
# As root it makes the namespaces; otherwise, or if it cannot, all runs in the current namespace, and the output says
# so.
set -eu
[ -e config.status ] || { echo "scale.sh: this is not a build directory" >&2; exit 1; }
build=$PWD
source=$(sed -n 's/^abs_top_srcdir = //p' Makefile)
model=$source/models/reference

if [ -z "${SKV_SCALE_INSIDE-}" ]; then
	export SKV_SCALE_INSIDE=here
	if [ "$(id -u)" = 0 ] && command -v ip >/dev/null && unshare --net ip link add skv0 type veth peer name skv1 2>/dev/null; then
		SKV_SCALE_INSIDE=namespaces exec unshare --net --pid --fork --kill-child --mount --mount-proc "$BASH" "$0" "$@"
	fi
	echo "scale.sh: no network namespaces here (root, iproute2 and veth expected): all daemons are in this one"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/skv-scale.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive
address=(127.0.0.1 127.0.0.1)
enter=("" "")
nixl=${SKV_TEST_NIXL-}
unset SKV_TEST_NIXL

# Each host: a namespace that a process holds, a link to this namespace, and through it to the other host.
if [ $SKV_SCALE_INSIDE = namespaces ]; then
	ip link set lo up
	echo 1 >/proc/sys/net/ipv4/ip_forward
	holders=()
	for i in 0 1; do
		unshare --net sleep infinity &
		holders[i]=$!
		while [ "$(readlink /proc/${holders[i]}/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
		ip link add skv$i type veth peer name host netns ${holders[i]}
		ip addr add 10.77.$i.1/24 dev skv$i
		ip link set skv$i up
		nsenter --net=/proc/${holders[i]}/ns/net sh -c "ip link set lo up; ip addr add 10.77.$i.2/24 dev host; ip link set host up; ip route add default via 10.77.$i.1"
		address[i]=10.77.$i.1
		# also mounts the namespace's /sys, where UCX finds network devices
		printf '#!/bin/sh\nexec nsenter --net=%s unshare --mount sh -c '\''mount -t sysfs sysfs /sys && exec "$@"'\'' sh "$@"\n' \
			"/proc/${holders[i]}/ns/net" >"$work/enter$i"
		chmod 755 "$work/enter$i"
		enter[i]=$work/enter$i
	done
	export SKV_TEST_NETNS=/proc/${holders[0]}/ns/net:/proc/${holders[1]}/ns/net SKV_TEST_STORE=10.77.0.1:10.77.1.1
fi

# run NAME COMMAND…: prints one line with the result, and the whole output if it fails
run() {
	local name=$1 begun=$SECONDS
	shift
	if "$@" >"$work/log" 2>&1; then
		echo "PASS $name ($((SECONDS - begun)) s)"
	else
		cat "$work/log"
		echo "FAIL $name"
		exit 1
	fi
}

echo "1. ranks"
run "selections of 1 to 4 ranks, 21 policies and parameters" tests/unit/client/test-client-ranks
run "an engine on 1, 2 and 3 ranks" tests/e2e/test-engine-ranks
run "200 deaths of a rank" env SKV_KILLS=200 tests/e2e/test-ranks-kill

echo "2, 3. two hosts and a store, tenants ($SKV_SCALE_INSIDE)"
run "sealed prefixes, 18 policies and parameters" tests/unit/client/test-client-prefix
run "shared, damaged, killed 60 times, slow, 16 tenants" env SKV_KILLS=60 tests/e2e/test-prefix-store
if [ -n "$nixl" ]; then
	run "the same by NIXL" env SKV_TEST_NIXL="$nixl" SKV_KILLS=60 tests/e2e/test-prefix-store
	run "gone, wrapped, stopped, wrong, mixed, by NIXL" env SKV_TEST_NIXL="$nixl" tests/e2e/test-prefix-nixl
fi

# ---- two hosts that keep running ----------------------------------------------------------------------------------------------------

head -c 32 /dev/urandom >"$work/secret"
chmod 600 "$work/secret"
redis=$(command -v redis-server || command -v redis-check-rdb)
(exec -a redis-server "$redis" --port 7381 --bind 0.0.0.0 --requirepass between-us --save '' --dir "$work") >"$work/redis.log" 2>&1 &
values() { REDISCLI_AUTH=between-us redis-cli -p 7381 "$@" 2>/dev/null; }
pids=()

# Arguments: more options of the daemons.
start_hosts() {
	for i in 0 1; do
		mkdir -p -m 700 "$work/parked$i"
		${enter[i]} daemon/sparsekvd --config=/dev/null --socket="$work/host$i" --policy-path="$build/policies/.libs" --cuda=off --log-level=notice \
			--pool-bytes=4G --account-bytes=4G --parked-path="$work/parked$i" --prefix-secret-file="$work/secret" \
			--prefix-store="redis://:between-us@${address[i]}:7381" "$@" >"$work/host$i.log" 2>&1 &
		pids[i]=$!
	done
	for i in 0 1; do
		for _ in $(seq 200); do daemon/ctl/sparsekvctl --socket "$work/host$i" status >/dev/null 2>&1 && break; sleep 0.05; done
	done
}

stop_hosts() {
	kill "${pids[@]}"
	wait "${pids[@]}" || true
	values flushall >/dev/null
}

# ---- time to the first token ----------------------------------------------------------------------------------------------------------

# Arguments: host, prompt, more arguments. Prints seconds, and tokens computed.
first_token() {
	engine/sparsekv-generate --socket "$work/host$1" --model "$model" --policy "$policy" --prompt-file "$2" --max-tokens 24 "${@:3}" \
		2>"$work/said" >"$work/text$1"
	sed -n 's/^first .*after \(.*\) s$/\1/p; s/^prompt .* \([0-9]*\) computed.*/\1/p' "$work/said" | tr '\n' ' '
}

# Argument: tokens. Waits until the store has the keys of that many tokens.
wait_keys() {
	for _ in $(seq 200); do [ "$(values eval "return #redis.call('keys', 'sparsekv:*')" 0)" -ge $(($1 / 256)) ] && break; sleep 0.05; done
}

# Arguments: host, metric. Prints a metric of its daemon.
metric() { daemon/ctl/sparsekvctl --socket "$work/host$1" metrics | awk -v name="sparsekv_prefix_$2" '$1 == name { print $2 }'; }

# Argument: policy.
first_tokens() {
	policy=$1
	values flushall >/dev/null
	# with another prompt first, so that workers connect and load what they need
	first_token 0 "$work/short" --prefixes >/dev/null
	wait_keys 512
	first_token 1 "$work/short" --prefixes >/dev/null
	read -r n_a s_a <<<"$(first_token 0 "$work/prompt" --prefixes)"
	wait_keys $((n_a + 512))
	bytes=$(values info memory | sed -n 's/^used_memory_dataset:\([0-9]*\).*/\1/p')
	read -r n_b s_b <<<"$(first_token 1 "$work/prompt" --prefixes)"
	cmp "$work/text0" "$work/text1"
	read -r n_c s_c <<<"$(first_token 1 "$work/prompt")"
	[ "$policy" != full ] || cmp "$work/text0" "$work/text1" # compressed prefixes may give other text than reading
	cat <<END
   prompt of $((n_a + 1)) tokens, reference model, $policy
                                               tokens computed   first token after
   read on host 0                                  $n_a             $s_a s
   begun on host 1 with what the store has          $n_b               $s_b s, of which $(metric 1 fetch_seconds_last) s until it was there
   read on host 1 again                            $n_c             $s_c s
   the store has $(values dbsize) values, $((bytes / 1048576)) MiB; by NIXL $(metric 1 nixl_values_total) values, $(($(metric 1 nixl_bytes_total) / 1048576)) MiB
END
	[ "$n_b" -le 256 ] || { echo "FAIL: it was computed again"; cat "$work"/host?.log; exit 1; }
}

# the longest prompt of the reference model's tasks; a token is a byte
sed -n 's/.*"task": "niah", "size": 8192, "prompt": "\(.*\)", "answer".*/\1/p' "$model/tasks-dev.jsonl" | head -n 1 | sed 's/\\n/\n/g' >"$work/prompt"
tail -c 600 "$work/prompt" >"$work/short"
if [ -n "$nixl" ]; then
	start_hosts --prefix-store-nixl="$nixl"
	first_tokens full
	stop_hosts
fi
start_hosts
first_tokens 'kivi?bits=2'
first_tokens full

# ---- a trace, played and simulated ------------------------------------------------------------------------------------------------------

echo "4. a trace of 200 requests on two hosts"
bench/sparsekv-bench scale --workload chat --hosts 2 --requests 200 --context 2048 --system 300 --message 60 --answer 40 --tenants 2 --prompts 2 \
	--think 5 --rate 2 --bytes 512 --routing random --trace "$work/trace" >/dev/null
users=
[ "$(id -u)" != 0 ] || users="--uid 20000"
chmod 755 "$work"
bench/sparsekv-bench scale --bytes 512 --store 4194304 --replay "$work/trace" --csv "$work/simulated" >/dev/null
expected=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "hit") at = i } NR == 2 { print 100 * $at }' "$work/simulated")
bench/sparsekv-bench prefixes --replay "$work/trace" --socket "$work/host0" --socket "$work/host1" $users --check --expect "$expected" --within 5
echo "   simulated: $expected % of the prompts' tokens are there already"
