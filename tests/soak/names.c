/* SPDX-License-Identifier: Apache-2.0 */
/* tests/soak/names.c - which process has which named sequence, and which replies of the daemon that allows. */
#include "tests/soak/soak.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

enum name_state name_state(uint64_t word)
{
	return (enum name_state)(word >> 56);
}

uint32_t name_holder(uint64_t word)
{
	return (uint32_t)(word >> 32) & 0xffffff;
}

static bool is_dead(uint64_t word)
{
	return soak->fate[name_holder(word)] != SOAK_ALIVE;
}

bool name_change(uint32_t name, uint64_t was, enum name_state state, uint32_t holder)
{
	const uint64_t now = (uint64_t)state << 56 | (uint64_t)holder << 32 | (uint32_t)(was + 1);

	return atomic_compare_exchange_strong(&soak->name[name].word, &was, now);
}

/* May the daemon have let a process attach it that does not hold it? */
static bool may_be_taken(uint64_t word)
{
	switch (name_state(word)) {
	case NAME_LEAVING:
	case NAME_LEFT:
		return true;
	case NAME_MAKING:
	case NAME_HELD:
	case NAME_DROPPING:
		return is_dead(word);
	default:
		return false;
	}
}

bool name_take(uint32_t name, uint32_t process)
{
	uint64_t word;

	do {
		word = soak->name[name].word;
		if (!may_be_taken(word))
			return false;
	} while (!name_change(name, word, NAME_HELD, process));
	return true;
}

/* A killed engine still counts, until its successor tries. */
static bool another_tries(uint32_t name, uint32_t engine)
{
	for (uint32_t i = 0; i < SOAK_ENGINES; i++)
		if (i != engine && soak->engine[i].trying == name + 1)
			return true;
	return false;
}

bool name_may_refuse(uint32_t name, uint32_t engine, uint64_t before, int error)
{
	const enum name_state state = name_state(before);
	/* read first: both stay set until the word says that they succeeded */
	const bool tries = another_tries(name, engine), erasing = soak->erasing == name + 1;

	if (soak->name[name].word != before)
		return true;
	if (error == -EBUSY)
		return state == NAME_LEFT ? tries : state != NAME_ABSENT;
	if (error == -ENOENT)
		return state == NAME_ABSENT || state == NAME_MAKING || state == NAME_DROPPING || erasing;
	return false;
}

/* Ends the sequence of a name whose word is `word`. False: the word has changed. */
static bool end(uint32_t name, uint64_t word)
{
	uint32_t life;

	if (!name_change(name, word, NAME_MAKING, name_holder(word)))
		return false;
	word = soak->name[name].word;
	life = soak->name[name].life;
	soak->name[name].life = SOAK_NONE;
	if (life != SOAK_NONE)
		life_over(&soak->life[life]);
	return name_change(name, word, NAME_ABSENT, 0);
}

void name_is_absent(uint32_t name, uint64_t before)
{
	const bool making = name_state(before) == NAME_MAKING, dropping = name_state(before) == NAME_DROPPING;

	/* until the daemon has forgotten the process, it may still carry out a request of it */
	if ((making || dropping) && soak->fate[name_holder(before)] == SOAK_GONE)
		(void)end(name, before);
}

void name_erased(uint32_t name)
{
	uint64_t word;

	do {
		word = soak->name[name].word;
		if (name_state(word) == NAME_ABSENT)
			return; /* another process has found out */
		ck_assert_msg(may_be_taken(word), "%s was dropped, and is held: word %llx", name_of(name),
		              (unsigned long long)word);
	} while (!end(name, word));
}

const char *name_of(uint32_t name)
{
	static char text[4][16];
	static unsigned next;

	return snprintf(text[next++ % 4], sizeof(text[0]), "soak-%u", name), text[(next - 1) % 4];
}
