// Reductions of a group.
#pragma once

#include "../cooperative_groups.h"
