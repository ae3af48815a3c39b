# SPDX-License-Identifier: Apache-2.0
# Units, the service's user, its runtime directory, its configuration.
EXTRA_DIST += systemd/sparsekvd.service.in systemd/sparsekvd.socket systemd/sparsekvd-operators.socket systemd/sparsekvd.sysusers \
	systemd/sparsekvd.tmpfiles systemd/sparsekvd.conf

# An example for a store over TCP, to be copied.
dist_doc_DATA += systemd/prefix-store.conf

systemdsystemunit_DATA = systemd/sparsekvd.service systemd/sparsekvd.socket systemd/sparsekvd-operators.socket
CLEANFILES += systemd/sparsekvd.service

# The template has the service's type for newer and older systemd. The daemon reports the end of a reload to both, but
# the older one must be told how to start a reload.
if NOTIFY_RELOAD
other_type = @if_notify@
this_type = @if_notify_reload@
else
other_type = @if_notify_reload@
this_type = @if_notify@
endif
systemd/sparsekvd.service: $(srcdir)/systemd/sparsekvd.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
		sed 's|@sbindir[@]|$(sbindir)|g; /^$(other_type)/d; s|^$(this_type)||' \
		$(srcdir)/systemd/sparsekvd.service.in > $@.tmp && mv $@.tmp $@

# Installed under names of their own; an existing configuration is not overwritten.
install-data-local: install-systemd
install-systemd:
	$(MKDIR_P) "$(DESTDIR)$(sysusersdir)" "$(DESTDIR)$(tmpfilesdir)" "$(DESTDIR)$(sysconfdir)"
	$(INSTALL_DATA) $(srcdir)/systemd/sparsekvd.sysusers "$(DESTDIR)$(sysusersdir)/sparsekvd.conf"
	$(INSTALL_DATA) $(srcdir)/systemd/sparsekvd.tmpfiles "$(DESTDIR)$(tmpfilesdir)/sparsekvd.conf"
	test -e "$(DESTDIR)$(sysconfdir)/sparsekvd.conf" || \
		$(INSTALL_DATA) $(srcdir)/systemd/sparsekvd.conf "$(DESTDIR)$(sysconfdir)/sparsekvd.conf"
uninstall-local: uninstall-systemd
uninstall-systemd:
	rm -f "$(DESTDIR)$(sysusersdir)/sparsekvd.conf" "$(DESTDIR)$(tmpfilesdir)/sparsekvd.conf"
	cmp -s $(srcdir)/systemd/sparsekvd.conf "$(DESTDIR)$(sysconfdir)/sparsekvd.conf" && \
		rm -f "$(DESTDIR)$(sysconfdir)/sparsekvd.conf" || :
.PHONY: install-systemd uninstall-systemd
