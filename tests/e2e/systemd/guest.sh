#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the checks inside the machine that run.sh boots. Prints one line for each, then the number that failed.
set -u
here=$(dirname "$0")
config=$(sparsekvd --help | sed -n 's/.*instead of //p')
dropin=/etc/systemd/system/sparsekvd.service.d
# shellcheck source=tests/e2e/systemd/checks.sh
. "$here/checks.sh"

# logged PATTERN: the daemon has logged it since `mark`
mark() {
	journalctl --sync
	cursor=$(journalctl -q -n 1 -o export | sed -n 's/^__CURSOR=//p')
}
logged() {
	journalctl --sync
	journalctl -q -u sparsekvd --after-cursor "$cursor" -o cat | grep -E "$1" ||
		{ journalctl -q -u sparsekvd --after-cursor "$cursor" -o cat; return 1; }
}

# shellcheck source=tests/e2e/systemd/guest-reboot.sh
[ ! -e /out/parked ] || . "$here/guest-reboot.sh"

ldconfig
useradd -m tester
mkdir -p /out/disk /var/lib/sparsekv
mount --bind /out/disk /var/lib/sparsekv # the disk that the next boot has, too
as_tester() {
	setpriv --reuid tester --regid tester --init-groups -- "$@"
}

check "systemd is PID 1" is cat /proc/1/comm = systemd
check "sysusers made the service's user" is getent passwd sparsekv = 'sparsekv:*'
check "tmpfiles made its directory" is stat -c '%U %a' /run/sparsekv = 'root 755'
check "the units have nothing to complain of" \
	is systemd-analyze verify --man=no sparsekvd.service sparsekvd.socket sparsekvd-operators.socket = ''
check "doc/operate.md: users" systemd-sysusers
check "directories" systemd-tmpfiles --create
check "units" systemctl daemon-reload
check "and the sockets" systemctl enable --now sparsekvd.socket sparsekvd-operators.socket

# start and stop
mark
check "systemctl start" systemctl start sparsekvd.service
check "it is active" is show ActiveState = active
check "as its own user" is stat -c %U "/proc/$(show MainPID)" = sparsekv
check "STATUS is shown" is show StatusText = '*?*'
check "the start is in the journal" logged 'listens on'
check "journal entries carry the daemon's name" \
	is journalctl -q -u sparsekvd _PID="$(show MainPID)" -n 1 -o json --output-fields=SYSLOG_IDENTIFIER = '*"sparsekvd"*'
check "a user is served" is as_tester "$here/hello.pl" = 'ok 1'
check "the folder of parked sequences is its own" is stat -c '%U %a' /var/lib/sparsekv = 'sparsekv 700'

# operators
check "the operators' socket is theirs alone" is stat -c '%U:%G %a' /run/sparsekv-operators/sparsekvd.sock = 'root:sparsekv 660'
policy=$(find /usr -name full.so -path '*sparsekv*' | head -n 1)
check "root loads a policy" is sparsekvctl policy load "$policy" = 'loaded full *'
check "a user does not" is as_tester sparsekvctl policy load "$policy" = '*operators*'
check "and sees what is its own" is as_tester sparsekvctl seq list = '*'
check "nothing of the probe's sandbox is lacking, or it is said" \
	is sh -c "journalctl -q -u sparsekvd -o cat | grep -c 'sandbox' || true" = '[01]'
gpasswd -a tester sparsekv >/dev/null
check "a member of the group does" is as_tester sparsekvctl policy load "$policy" = 'loaded full *'
gpasswd -d tester sparsekv >/dev/null
check "exposure is no more than it was" \
	is sh -c "systemd-analyze security --no-pager sparsekvd.service | sed -n 's/.*exposure level for [^:]*: \\([0-9.]*\\).*/\\1/p'" = '1.[0-3]'

# reload
pid=$(show MainPID)
mark
cp "$config" /tmp/good.conf
echo 'account-clients = 1' >>"$config"
check "systemctl reload" systemctl reload sparsekvd.service
check "the reload is in the journal" within 5 logged reloaded
check "it is active after it" within 5 is show ActiveState = active
as_tester "$here/hello.pl" 600 >/tmp/first &
check "a first client is served" within 5 is cat /tmp/first = 'ok 1'
check "a second is beyond the new quota" is as_tester "$here/hello.pl" = 'error 122 *'
mark
sed 's/^account-clients.*/account-clients = many/' -i "$config"
check "systemctl reload of a wrong file" systemctl reload sparsekvd.service
check "file, line and expectation are in the journal" \
	within 5 logged "$config:[0-9]+: account-clients: got .?many.?, expected"
check "and in the status" within 5 is show StatusText = "*$config:*account-clients*"
check "the old configuration is in force" is as_tester "$here/hello.pl" = 'error 122 *'
check "in the same process" is show MainPID = "$pid"
kill %1
cp /tmp/good.conf "$config"
check "systemctl reload of the first file" systemctl reload sparsekvd.service
check "and a user is served" within 5 is as_tester "$here/hello.pl" = 'ok 1'

mark
check "systemctl stop" systemctl stop sparsekvd.service
check "it ended well" is show Result = success
check "with status 0" is show ExecMainStatus = 0
check "its state is consistent" logged 'the state is consistent'

# a restart, a kill and an upgrade of the binary lose nothing that was committed
check "systemctl start" systemctl start sparsekvd.service
check "an engine generates undisturbed" sh -c "setpriv --reuid tester --regid tester --init-groups -- $here/engine quiet 1500 >/tmp/quiet"
as_tester "$here/engine" chat 1500 >/tmp/chat 2>&1 &
engine=$!
mark
for how in restart kill restart upgrade restart kill; do
	sleep 0.5
	pid=$(show MainPID)
	case $how in
	restart) check "systemctl restart while it generates" systemctl restart sparsekvd.service ;;
	kill)
		kill -KILL "$pid"
		check "killed, it is started again" within 10 sh -c "test \$(systemctl show --value -p MainPID sparsekvd.service) -gt 0"
		;;
	upgrade)
		version=$(sparsekvd --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+')
		# as long, and with the same end, which other strings of the binary may share
		newer=$((${version%%.*} + 1)).${version#*.}
		sed "s/${version//./\\.}/$newer/g" "$(command -v sparsekvd)" >/tmp/newer
		chmod 755 /tmp/newer
		mv /tmp/newer "$(command -v sparsekvd)"
		check "a binary of version $newer takes over" systemctl restart sparsekvd.service
		check "and serves" is as_tester sparsekvctl status = "*$newer*"
		;;
	esac
	check "in a new process" test "$(show MainPID)" != "$pid"
	systemctl reset-failed sparsekvd.service
done
check "the next daemon goes on where the one before ended" logged 'continues where the previous daemon ended: [0-9]+ clients?, [1-9]'
wait $engine
check "no call of the engine failed" test $? = 0
check "with the outputs of one that was not disturbed" \
	test "$(cut -d' ' -f1 /tmp/quiet)" = "$(cut -d' ' -f1 /tmp/chat)"
cat /tmp/chat
check "nothing was lost" test -z "$(journalctl -q -u sparsekvd --after-cursor "$cursor" -o cat | grep -E 'cannot be restored|cannot be taken|memory is not valid')"
check "sequences are there" is as_tester sparsekvctl seq list = '*chat*'
check "one is parked" is as_tester sparsekvctl seq park chat = 'parked chat: *'
check "and read" is as_tester sparsekvctl seq resume chat = 'resumed chat: *'
check "systemctl stop, which gives all up" systemctl stop sparsekvd.service
check "then all is gone" is sh -c 'systemctl start sparsekvd.service && sparsekvctl seq list | grep -c chat' = 0
check "an engine makes another" as_tester "$here/engine" chat 100
check "which is parked" within 5 is as_tester sparsekvctl seq park chat = 'parked chat: *'
check "systemctl stop" systemctl stop sparsekvd.service
check "it is there after that" is sh -c 'systemctl start sparsekvd.service && sparsekvctl seq list' = '*disk*chat*'
check "until it is dropped" as_tester sparsekvctl seq drop chat
check "systemctl stop" systemctl stop sparsekvd.service

# socket activation
check "the socket is still there" is systemctl is-active sparsekvd.socket = active
check "the daemon is not" is systemctl is-active sparsekvd.service = inactive
check "a user's connection starts it" is as_tester "$here/hello.pl" = 'ok 1'
check "it is active" is systemctl is-active sparsekvd.service = active

# watchdog
mkdir -p $dropin
printf '[Service]\nWatchdogSec=1s\n' >$dropin/test.conf
systemctl daemon-reload
systemctl restart sparsekvd.service
pid=$(show MainPID)
sleep 3
check "it feeds the watchdog" is show MainPID = "$pid"
mark
kill -STOP "$pid"
check "stopped, it is restarted" within 20 is show NRestarts = 1
check "by the watchdog" is journalctl -q --after-cursor "$cursor" -o cat = '*Watchdog timeout*'
check "and serves again" within 20 is as_tester "$here/hello.pl" = 'ok 1'
check "in a new process" test "$(show MainPID)" != "$pid"

# a kernel without io_uring
mark
printf '[Service]\nRestart=no\nSystemCallFilter=~io_uring_setup:EPERM\n' >$dropin/test.conf
systemctl daemon-reload
check "without io_uring it does not start" is systemctl restart sparsekvd.service = '*failed*'
check "and says what is missing" logged io_uring
rm $dropin/test.conf
systemctl daemon-reload
systemctl reset-failed sparsekvd.service
check "with it, it does" systemctl restart sparsekvd.service

# prepares the reboot that guest-reboot.sh checks
check "engines make 100 sequences" \
	as_tester sh -c "seq 100 | xargs -P 10 -I{} sh -c '$here/engine parked-{} \$(({} + 20)) >/dev/null'"
check "all of them are parked" as_tester sh -c "seq 100 | xargs -P 4 -I{} sparsekvctl seq park parked-{} >/dev/null"
check "and in the list" is sh -c "sparsekvctl seq list | grep -c 'disk *parked-'" = 100
: >/out/parked

echo "$failed failed"
[ $failed = 0 ]
