/* A libnvidia-ml.so.1 without a GPU, for tests.
 *
 * Every answer comes from the text file that NVML_SHIM_STATE names: one `key value` a line, read
 * again whenever the file is replaced, so that a test changes the machine under a running process.
 * shim.py writes the file and documents the keys. A question whose key is missing is NotSupported.
 * `fail.FUNCTION` or `fail.GPU.FUNCTION` makes a call return that code; `hang.FUNCTION` makes it
 * sleep for as long as the key is there. Only what nvidia-ml-py asks for us is declared, by hand.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };
enum { MAX_GPUS = 64, MAX_MIG = 8, MAX_ENTRIES = 8192, LINE = 512 };

typedef struct { int gpu, mig; } Handle;           /* mig < 0: the GPU itself */
typedef struct { char *key, *value; } Entry;
typedef struct { long seen; } EventSet;

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
typedef struct { Handle *device; unsigned long long type, data; unsigned gi, ci; } Event;
typedef struct {
  unsigned id, scope; long long at, latency; int type, result;
  union { double d; unsigned u; unsigned long long ull; } value;
} Field;

typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned mask; } Fabric;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Handle gpus[MAX_GPUS], slices[MAX_GPUS][MAX_MIG];
static Entry entries[MAX_ENTRIES];
static size_t entry_count;
static struct stat last;
static char *text;
static int users;

static int by_key(const void *a, const void *b) { return strcmp(((const Entry *)a)->key, ((const Entry *)b)->key); }

/* Called with the lock held. */
static void refresh(void) {
  const char *path = getenv("NVML_SHIM_STATE");
  struct stat now;
  if (!path || stat(path, &now)) { entry_count = 0; memset(&last, 0, sizeof last); return; }
  if (now.st_ino == last.st_ino && now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec
      && now.st_mtim.tv_nsec == last.st_mtim.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) { entry_count = 0; return; }
  free(text);
  text = calloc(1, (size_t)now.st_size + 1);
  size_t size = fread(text, 1, (size_t)now.st_size, file);
  fclose(file);
  text[size] = 0;
  last = now;
  entry_count = 0;
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *space = strchr(line, ' ');
    if (!space || entry_count == MAX_ENTRIES) continue;
    *space = 0;
    entries[entry_count++] = (Entry){line, space + 1};
  }
  qsort(entries, entry_count, sizeof *entries, by_key);
}

/* Copies the value of a key into `out`; 0 if there is none. */
static int find(const char *key, char *out) {
  pthread_mutex_lock(&lock);
  refresh();
  Entry wanted = {(char *)key, NULL}, *entry = bsearch(&wanted, entries, entry_count, sizeof *entries, by_key);
  if (entry && out) snprintf(out, LINE, "%s", entry->value);
  pthread_mutex_unlock(&lock);
  return entry != NULL;
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, (ms % 1000) * 1000000}, NULL); }

/* What every call does first: hang or fail on demand. */
static int enter(const char *function, const Handle *handle) {
  char key[LINE], value[LINE];
  snprintf(key, sizeof key, "hang.%s", function);
  while (find(key, NULL)) pause_ms(10);
  snprintf(key, sizeof key, "fail.%s", function);
  if (find(key, value)) return atoi(value);
  if (strcmp(function, "nvmlInitWithFlags") && !users) return UNINITIALIZED;
  if (!handle) return OK;
  snprintf(key, sizeof key, "%d.lost", handle->gpu);
  if (find(key, NULL)) return LOST;
  snprintf(key, sizeof key, "fail.%d.%s", handle->gpu, function);
  return find(key, value) ? atoi(value) : OK;
}

#define ENTER(handle) do { int entered = enter(__func__, handle); if (entered) return entered; } while (0)

static int text_of(const Handle *handle, const char *name, char *out) {
  char key[LINE];
  if (handle->mig < 0) snprintf(key, sizeof key, "%d.%s", handle->gpu, name);
  else snprintf(key, sizeof key, "%d.mig.%d.%s", handle->gpu, handle->mig, name);
  return find(key, out) ? OK : NOT_SUPPORTED;
}

static int number_of(const Handle *handle, const char *name, unsigned long long *out) {
  char value[LINE];
  int result = text_of(handle, name, value);
  if (!result) *out = strtoull(value, NULL, 10);
  return result;
}

static int unsigned_of(const Handle *handle, const char *name, unsigned *out) {
  unsigned long long value = 0;
  int result = number_of(handle, name, &value);
  if (!result) *out = (unsigned)value;
  return result;
}

static int string_of(const Handle *handle, const char *name, char *out, unsigned size) {
  char value[LINE];
  int result = text_of(handle, name, value);
  if (!result) snprintf(out, size, "%s", value);
  return result;
}

static int system_string(const char *key, char *out, unsigned size) {
  char value[LINE];
  if (!find(key, value)) return NOT_SUPPORTED;
  snprintf(out, size, "%s", value);
  return OK;
}

static unsigned count(void) {
  char value[LINE];
  return find("count", value) ? (unsigned)atoi(value) : 0;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  ENTER(NULL);
  if (!find("count", NULL)) return NOT_LOADED;
  pthread_mutex_lock(&lock);
  for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
    gpus[gpu] = (Handle){gpu, -1};
    for (int mig = 0; mig < MAX_MIG; mig++) slices[gpu][mig] = (Handle){gpu, mig};
  }
  users++;
  pthread_mutex_unlock(&lock);
  return OK;
}

int nvmlShutdown(void) {
  ENTER(NULL);
  pthread_mutex_lock(&lock);
  users--;
  pthread_mutex_unlock(&lock);
  return OK;
}

const char *nvmlErrorString(int result) {
  switch (result) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_LOADED: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    default: return "shim error";
  }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(NULL); return system_string("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER(NULL); return system_string("nvml", out, size); }
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(NULL); *out = count(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
  if (index >= count() || index >= MAX_GPUS) return INVALID;
  ENTER(&gpus[index]);
  *out = &gpus[index];
  return OK;
}

int nvmlDeviceGetUUID(Handle *h, char *out, unsigned size) { ENTER(h); return string_of(h, "uuid", out, size); }
int nvmlDeviceGetName(Handle *h, char *out, unsigned size) { ENTER(h); return string_of(h, "name", out, size); }
int nvmlDeviceGetMinorNumber(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "minor", out); }
int nvmlDeviceGetPowerUsage(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "power_mw", out); }
int nvmlDeviceGetEnforcedPowerLimit(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "power_limit_mw", out); }

int nvmlDeviceGetTemperature(Handle *h, int sensor, unsigned *out) {
  (void)sensor;
  ENTER(h);
  return unsigned_of(h, "temperature", out);
}

int nvmlDeviceGetClockInfo(Handle *h, int type, unsigned *out) {
  ENTER(h);
  return unsigned_of(h, type == 2 ? "memory_clock" : "sm_clock", out);
}

int nvmlDeviceGetCurrentClocksEventReasons(Handle *h, unsigned long long *out) { ENTER(h); return number_of(h, "throttle", out); }

int nvmlDeviceGetUtilizationRates(Handle *h, Utilization *out) {
  ENTER(h);
  out->memory = 0;
  unsigned_of(h, "memory_utilization", &out->memory);
  return unsigned_of(h, "utilization", &out->gpu);
}

int nvmlDeviceGetMemoryInfo_v2(Handle *h, MemoryV2 *out) {
  ENTER(h);
  int result = number_of(h, "memory_total", &out->total);
  if (result) return result;
  out->reserved = out->used = 0;
  number_of(h, "memory_reserved", &out->reserved);
  number_of(h, "memory_used", &out->used);
  out->free = out->total - out->reserved - out->used;
  return OK;
}

int nvmlDeviceGetMemoryInfo(Handle *h, Memory *out) {
  ENTER(h);
  int result = number_of(h, "memory_total", &out->total);
  if (result) return result;
  out->used = 0;
  number_of(h, "memory_used", &out->used);
  out->free = out->total - out->used;
  return OK;
}

int nvmlDeviceGetMaxPcieLinkWidth(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "pcie_max_width", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "pcie_max_generation", out); }
int nvmlDeviceGetCurrPcieLinkWidth(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "pcie_width", out); }
int nvmlDeviceGetCurrPcieLinkGeneration(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "pcie_generation", out); }

/* `N.fabric` is `state status mask`. */
int nvmlDeviceGetGpuFabricInfoV(Handle *h, Fabric *out) {
  char value[LINE];
  ENTER(h);
  int result = text_of(h, "fabric", value);
  if (!result && sscanf(value, "%hhu %u %u", &out->state, &out->status, &out->mask) != 3) return INVALID;
  return result;
}

static int pci_of(const char *address, Pci *out) {
  memset(out, 0, sizeof *out);
  snprintf(out->bus_id, sizeof out->bus_id, "%s", address);
  sscanf(address, "%x:%x:%x", &out->domain, &out->bus, &out->device);
  return OK;
}

int nvmlDeviceGetPciInfo_v3(Handle *h, Pci *out) {
  char address[LINE];
  ENTER(h);
  int result = text_of(h, "bus", address);
  return result ? result : pci_of(address, out);
}

/* `N.link.K` is `version peer`, where peer is a bus id, `switch`, or `down`. */
static int link_of(const Handle *h, unsigned number, unsigned *version, char *peer) {
  char name[LINE], value[LINE];
  snprintf(name, sizeof name, "link.%u", number);
  if (text_of(h, name, value)) return number ? INVALID : NOT_SUPPORTED;
  return sscanf(value, "%u %511s", version, peer) == 2 ? OK : INVALID;
}

int nvmlDeviceGetNvLinkState(Handle *h, unsigned number, unsigned *out) {
  unsigned version;
  char peer[LINE];
  ENTER(h);
  int result = link_of(h, number, &version, peer);
  if (!result) *out = strcmp(peer, "down") != 0;
  return result;
}

int nvmlDeviceGetNvLinkVersion(Handle *h, unsigned number, unsigned *out) {
  char peer[LINE];
  ENTER(h);
  return link_of(h, number, out, peer);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle *h, unsigned number, int *out) {
  unsigned version;
  char peer[LINE];
  ENTER(h);
  int result = link_of(h, number, &version, peer);
  if (!result) *out = strcmp(peer, "switch") ? 0 : 2;
  return result;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *h, unsigned number, Pci *out) {
  unsigned version;
  char peer[LINE];
  ENTER(h);
  int result = link_of(h, number, &version, peer);
  return result ? result : pci_of(peer, out);
}

int nvmlDeviceGetMigMode(Handle *h, unsigned *now, unsigned *pending) {
  ENTER(h);
  int result = unsigned_of(h, "mig_mode", now);
  *pending = result ? 0 : *now;
  return result;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned *out) { ENTER(h); *out = MAX_MIG - 1; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned number, Handle **out) {
  ENTER(h);
  if (number >= MAX_MIG) return INVALID;
  if (text_of(&slices[h->gpu][number], "uuid", (char[LINE]){0})) return NOT_FOUND;
  *out = &slices[h->gpu][number];
  return OK;
}

int nvmlDeviceGetGpuInstanceId(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "gi", out); }
int nvmlDeviceGetComputeInstanceId(Handle *h, unsigned *out) { ENTER(h); return unsigned_of(h, "ci", out); }

/* Counters by field id: `N.field.ID value`. */
int nvmlDeviceGetFieldValues(Handle *h, int size, Field *fields) {
  ENTER(h);
  for (int i = 0; i < size; i++) {
    char name[LINE];
    snprintf(name, sizeof name, "field.%u", fields[i].id);
    fields[i].type = 3;
    fields[i].result = number_of(h, name, &fields[i].value.ull);
  }
  return OK;
}

/* `N.process.K` is `pid bytes gi ci`. */
static int processes_of(Handle *h, unsigned *size, Process *out) {
  unsigned capacity = *size, found = 0;
  char name[LINE], value[LINE];
  for (;; found++) {
    snprintf(name, sizeof name, "process.%u", found);
    if (text_of(h, name, value)) break;
    if (!out || found >= capacity) continue;
    sscanf(value, "%u %llu %u %u", &out[found].pid, &out[found].memory, &out[found].gi, &out[found].ci);
  }
  *size = found;
  return found > capacity ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle *h, unsigned *size, Process *out) { ENTER(h); return processes_of(h, size, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *h, unsigned *size, Process *out) { ENTER(h); (void)out; *size = 0; return OK; }

/* Events: `event.K` is `gpu xid`, K counted from 1; `events` is the highest K so far. */
static long events_so_far(void) {
  char value[LINE];
  return find("events", value) ? atol(value) : 0;
}

int nvmlEventSetCreate(EventSet **out) {
  ENTER(NULL);
  *out = malloc(sizeof **out);
  (*out)->seen = events_so_far();
  return OK;
}

int nvmlEventSetFree(EventSet *set) { ENTER(NULL); free(set); return OK; }
int nvmlDeviceRegisterEvents(Handle *h, unsigned long long types, EventSet *set) { ENTER(h); (void)types; (void)set; return OK; }

int nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned milliseconds) {
  ENTER(NULL);
  for (long waited = 0;; waited += 5) {
    if (events_so_far() > set->seen) break;
    if (waited >= (long)milliseconds) return TIMEOUT;
    pause_ms(5);
  }
  char key[LINE], value[LINE];
  unsigned gpu = 0;
  snprintf(key, sizeof key, "event.%ld", ++set->seen);
  *out = (Event){.type = 8, .gi = ~0u, .ci = ~0u};
  if (!find(key, value) || sscanf(value, "%u %llu", &gpu, &out->data) != 2 || gpu >= MAX_GPUS) return TIMEOUT;
  out->device = &gpus[gpu];
  return OK;
}
