// A cluster file in another user's directory is not believed: no call gets to the servers that it names.
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <tabane.h>

int main(void) {
    FAILS(tabane_init(NULL), EACCES);
    CHECK(strstr(tabane_error_message(), "65534") != NULL);
    FAILS(tabane_open("/stolen", O_RDWR | O_CREAT, 0644), ESHUTDOWN);
    FAILS(tabane_mkdir("/stolen", 0755), ESHUTDOWN);
    return 0;
}
