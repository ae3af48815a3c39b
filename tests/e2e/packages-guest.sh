#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# packages-guest.sh - the checks of the packages, inside the machine that packages.sh boots. Prints one line for each,
# then the number that failed.
set -u
here=$(dirname "$0")
# shellcheck source=tests/e2e/systemd/checks.sh
. "$here/checks.sh"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 OMP_WAIT_POLICY=passive
export DEBIAN_FRONTEND=noninteractive
model=$here/model
mapfile -t names < <(for deb in "$here"/debs/*.deb; do dpkg-deb -f "$deb" Package; done)

useradd -m tester
as_tester() {
	setpriv --reuid tester --regid tester --init-groups -- "$@"
}
install_packages() {
	apt-get install -y --no-install-recommends "$@"
}
# versions: prints one line with each version of the packages that is installed
versions() {
	dpkg-query -W -f '${Version}\n' "${names[@]}" | sort -u
}
# lists_nothing COMMAND…: its output must be empty
lists_nothing() {
	is "$@" = ''
}

check "systemd is PID 1" is cat /proc/1/comm = systemd
check "the lists of packages" apt-get update
check "apt installs ${names[*]}" install_packages "$here"/debs/*.deb
check "all of one version" is versions = '+([^+])'
version=$(versions)

# state after installation
check "the sockets listen" is systemctl is-active sparsekvd.socket sparsekvd-operators.socket = $'active\nactive'
check "and will after a boot" is systemctl is-enabled sparsekvd.socket sparsekvd-operators.socket = $'enabled\nenabled'
check "the daemon waits for the first engine" is systemctl is-active sparsekvd.service = inactive
check "the units have nothing to complain of" \
	lists_nothing systemd-analyze verify --man=no sparsekvd.service sparsekvd.socket sparsekvd-operators.socket
check "systemctl start sparsekvd" systemctl start sparsekvd
check "it is active" is show ActiveState = active
check "as its own user" is stat -c %U "/proc/$(show MainPID)" = sparsekv
check "a user is served" is as_tester "$here/hello.pl" = 'ok 1'
check "sparsekvctl status" as_tester sparsekvctl status
check "all policies are loaded" is sh -c "sparsekvctl policy list | grep -c ', from /usr/lib/'" = \
	"$(find /usr/lib -path '*/sparsekvd/policies/*.so' | wc -l)"

# sparsekv-tools
generate=(as_tester sparsekv-generate --model "$model" --policy full --quiet --max-tokens 12 --seq kept)
check "sparsekv-eval, example of the README" as_tester sparsekv-eval --summary --model "$model" --tasks "$model/tasks-dev.jsonl" \
	--sizes 1024 --limit 1 --policy full --policy 'delta?budget=0.25&layers=2,7,12'
check "sparsekv-generate keeps a sequence" "${generate[@]}" --prompt 'The Debian project is'
check "it is in the daemon" is as_tester sparsekvctl seq list = '*kept*'
check "sparsekv-generate --private" as_tester sparsekv-generate --private --quiet --model "$model" --policy streaming --prompt a --max-tokens 4
check "sparsekv-bench" as_tester sparsekv-bench ipc --help

# libsparsekv-client-dev, as README says
check "a compiler" install_packages gcc libc6-dev pkg-config
# shellcheck disable=SC2016 # for the other shell
check "the example of a policy compiles" sh -c 'cd /tmp && sed "s/\"template\"/\"mine\"/" /usr/share/doc/libsparsekv-client-dev/examples/template.c >mine.c &&
	cc -O2 -shared -fPIC $(pkg-config --cflags sparsekv-client) -o mine.so mine.c'
check "and is loaded" is sparsekvctl policy load /tmp/mine.so = 'loaded mine *'
check "and verified" sparsekvctl policy verify -n 4 'mine?budget=0.5'
printf '%s\n' '#include <sparsekv/client.h>' '#include <stdio.h>' 'int main(void) { puts(skv_version()); }' >/tmp/hello.c
# shellcheck disable=SC2016
check "an engine links the library" is sh -c 'cd /tmp && cc -o hello hello.c $(pkg-config --cflags --libs sparsekv-client) && ./hello' = "$version"

# python3-sparsekv
check "numpy" install_packages python3-numpy
cat >/tmp/step.py <<'END'
import numpy, sparsekv
rows = lambda heads: numpy.ones((3, heads, 64), dtype="float32")
with sparsekv.Client() as client:
	session = client.open(sparsekv.Model("toy", n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, max_tokens=64))
	seq, out = session.new(), 0 * rows(4)
	with session.step([sparsekv.Item(seq, n_tokens=3, prompt=True)]) as step:
		step.attend(0, rows(4), rows(2), rows(2), out)
	print(sparsekv.__version__, len(seq), out.min(), out.max())
END
check "python3: a step" is as_tester python3 /tmp/step.py = "$version 3 1.0 1.0"

# upgrade: sequences are lost with the daemon, so it must not stop
pid=$(show MainPID)
echo 'account-clients = 100' >>/etc/sparsekvd.conf
check "apt upgrades them" is install_packages "$here"/next/*.deb = '*systemctl restart sparsekvd*'
check "all of the next version" is versions = "$version+next"
check "the daemon was not restarted" is show MainPID = "$pid"
check "it is active" is show ActiveState = active
check "its sequence is there" is as_tester sparsekvctl seq list = '*kept*'
check "and goes on" "${generate[@]}"
check "it is parked" is as_tester sparsekvctl seq park kept = 'parked kept: *'
check "what the operator wrote is kept" grep -q account-clients /etc/sparsekvd.conf
check "the units are those of the package" is show NeedDaemonReload = no
check "systemctl restart sparsekvd" systemctl restart sparsekvd
check "a new process" test "$(show MainPID)" != "$pid"
check "a user is served" is as_tester "$here/hello.pl" = 'ok 1'

# remove and purge
check "apt removes them" apt-get remove -y "${names[@]}"
check "no process is left" lists_nothing grep -ls sparsekv /proc/[0-9]*/comm
check "no socket is left" lists_nothing find /run -name '*sparsekv*'
check "the configuration is" test -e /etc/sparsekvd.conf
check "so are parked sequences" is find /var/lib/sparsekv -name '*.parked' = '/var/lib/sparsekv/*/*.parked'
check "apt installs them again" install_packages "$here"/next/*.deb
check "a user is served at once" is as_tester "$here/hello.pl" = 'ok 1'
check "with the operator's settings" grep -q account-clients /etc/sparsekvd.conf
check "apt purges them" apt-get purge -y "${names[@]}"
check "no process is left" lists_nothing grep -ls sparsekv /proc/[0-9]*/comm
check "no unit" lists_nothing systemctl list-units --all --plain --no-legend '*sparsekv*'
check "no unit file" lists_nothing systemctl list-unit-files --no-legend '*sparsekv*'
check "no user" lists_nothing getent passwd sparsekv
check "no group" lists_nothing getent group sparsekv
check "no package" lists_nothing sh -c "dpkg-query -W -f '\${Package} \${Status}\n' | grep sparsekv | grep -v ' not-installed'"
# except the test's own files and apt's archives
check "no file" lists_nothing find / /run -xdev \( -path "$here" -o -path /out -o -path /tmp -o -path /var/cache/apt \) -prune -o \
	-name '*sparsekv*' -print
check "and none that names it" lists_nothing grep -rl --exclude='*-' --exclude='skv-test.*' sparsekv /etc /run/systemd /var/lib/systemd /var/lib/dpkg/info /var/lib/dpkg/triggers

echo "$failed failed"
[ "$failed" = 0 ]
