/* A freed object is usually refused. Reading freed memory is an error, so this program runs without
 * tools that find such errors. */
#include "check.h"

int main(void)
{
    onramp_tree *tree = NULL;
    GIVES(0, onramp_tree_new(&tree, "qdisc add root fq", 0, 0));
    GIVES(0, onramp_tree_free(tree));
    FAILS(EBADF, "the onramp_tree was freed", onramp_tree_reset(tree, 0));
    FAILS(EBADF, "the onramp_tree was freed", onramp_tree_free(tree));
    return 0;
}
