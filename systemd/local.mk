# SPDX-License-Identifier: Apache-2.0
# Units, the service's user, its runtime directory, its configuration.
EXTRA_DIST += systemd/sparsekvd.service.in systemd/sparsekvd.socket systemd/sparsekvd-operators.socket systemd/sparsekvd.sysusers \
	systemd/sparsekvd.tmpfiles systemd/sparsekvd.conf

# An example: who has a store over TCP copies it.
dist_doc_DATA += systemd/prefix-store.conf

systemdsystemunit_DATA = systemd/sparsekvd.service systemd/sparsekvd.socket systemd/sparsekvd-operators.socket
CLEANFILES += systemd/sparsekvd.service

# The template has the service's type for both systemds; an older one is told of the end of a reload all
# the same, but has to be told how to begin one.
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

# Installed under names of their own; a configuration that is there is not overwritten.
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
