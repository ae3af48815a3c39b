/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/policies.c - the policies that the oracle knows. */
#include "tests/oracle/oracle.h"

#include <string.h>

const struct oracle_policy *oracle_find(const char *spec)
{
	static const struct oracle_policy *const all[] = {
		&oracle_full,  &oracle_streaming,  &oracle_delta, &oracle_omnikv, &oracle_kascade,
		&oracle_tidal, &oracle_lessismore, &oracle_quest,
		&oracle_h2o,   &oracle_snapkv,     &oracle_pyramidkv, &oracle_rkv, &oracle_raas,
		&oracle_adakv, &oracle_deltakv,    &oracle_kivi, &oracle_palu, &oracle_sketch,
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
