/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/policies.c - the policies that the oracle knows. */
#include "tests/oracle/oracle.h"

#include <string.h>

/* Each policy's is in the file of its name; policies/names.h is made of the list in policies/local.mk. */
#define SKV_ORACLE(name) extern const struct oracle_policy oracle_##name;
#include "policies/names.h"
#undef SKV_ORACLE

const struct oracle_policy *oracle_find(const char *spec)
{
	static const struct oracle_policy *const all[] = {
#define SKV_ORACLE(name) &oracle_##name,
#include "policies/names.h"
	};
	size_t len = strcspn(spec, "?:");

	/* a model's profile is in a file that the oracle does not read */
	if (strstr(spec, "profile=/"))
		return NULL;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strlen(all[i]->name) == len && !strncmp(all[i]->name, spec, len))
			return all[i];
	return NULL;
}
