/* A stand-in for libnvidia-ml.so.1: answers from a control file, which is read at every call.
 *
 * The file is named by FUSEWIRE_FAKE_NVML. Lines, in any order:
 *   init CODE                      what initialisation returns (9: driver not loaded)
 *   delay MILLISECONDS             every query of a device takes so long
 *   gpu NUMBER KEY VALUE           KEY: total, used (bytes), temperature, utilization, energy (millijoules), ecc,
 *                                  fail (what every query of this GPU returns), unsupported (1: only memory is known)
 *   process NUMBER PID BYTES       a compute process on GPU NUMBER
 * The number of GPUs is the highest NUMBER plus one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, MOST_GPUS = 64 };

typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned int gpu, memory; } Utilization;

static FILE *control(void) {
    const char *path = getenv("FUSEWIRE_FAKE_NVML");
    return path == NULL ? NULL : fopen(path, "r");
}

static long long setting(const char *wanted, long long otherwise) {
    char line[256], key[32];
    long long value, found = otherwise;
    FILE *file = control();
    if (file == NULL) return otherwise;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%31s %lld", key, &value) == 2 && strcmp(key, wanted) == 0) found = value;
    fclose(file);
    return found;
}

static long long of_gpu(int gpu, const char *wanted, long long otherwise) {
    char line[256], key[32];
    int number;
    long long value, found = otherwise;
    FILE *file = control();
    if (file == NULL) return otherwise;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "gpu %d %31s %lld", &number, key, &value) == 3 && number == gpu && strcmp(key, wanted) == 0)
            found = value;
    fclose(file);
    return found;
}

static int count(void) {
    char line[256];
    int number, most = 0;
    FILE *file = control();
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "gpu %d", &number) == 1 && number >= most && number < MOST_GPUS) most = number + 1;
    fclose(file);
    return most;
}

/* A handle is the GPU's number plus one, so that it is never NULL. */
static int ask(void *handle, int needs_support) {
    int gpu = (int)(long)handle - 1;
    if (gpu < 0 || gpu >= MOST_GPUS) return INVALID_ARGUMENT;
    usleep((useconds_t)setting("delay", 0) * 1000);
    int code = (int)of_gpu(gpu, "fail", OK);
    return code == OK && needs_support && of_gpu(gpu, "unsupported", 0) ? NOT_SUPPORTED : code;
}

#define GPU(handle) ((int)(long)(handle) - 1)

int nvmlInit_v2(void) { return (int)setting("init", OK); }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }
int nvmlSystemGetDriverVersion(char *text, unsigned int size) { snprintf(text, size, "0.0"); return OK; }
int nvmlDeviceGetCount_v2(unsigned int *number) { *number = (unsigned int)count(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int gpu, void **handle) {
    if ((int)gpu >= count()) return INVALID_ARGUMENT;
    *handle = (void *)(long)(gpu + 1);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int gpu;
    if (sscanf(uuid, "GPU-fake-%d", &gpu) != 1 || gpu >= count()) return INVALID_ARGUMENT;
    *handle = (void *)(long)(gpu + 1);
    return OK;
}

int nvmlDeviceGetIndex(void *handle, unsigned int *gpu) { *gpu = (unsigned int)GPU(handle); return OK; }

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int size) {
    snprintf(text, size, "GPU-fake-%d", GPU(handle));
    return OK;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int size) {
    (void)handle;
    snprintf(text, size, "Fake GPU");
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    int code = ask(handle, 0);
    if (code != OK) return code;
    memory->total = (unsigned long long)of_gpu(GPU(handle), "total", 0);
    memory->used = (unsigned long long)of_gpu(GPU(handle), "used", 0);
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    Memory plain;
    int code = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (code != OK) return code;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *room, Process *processes) {
    char line[256];
    int number, found = 0, code = ask(handle, 1);
    unsigned int pid;
    unsigned long long bytes;
    if (code != OK) return code;
    FILE *file = control();
    if (file == NULL) { *room = 0; return OK; }
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "process %d %u %llu", &number, &pid, &bytes) == 3 && number == GPU(handle)) {
            if (processes != NULL && found < (int)*room)
                processes[found] = (Process){pid, bytes, 0xFFFFFFFF, 0xFFFFFFFF};
            found++;
        }
    fclose(file);
    int enough = found <= (int)*room;
    *room = (unsigned int)found;
    return enough ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned int *room, Process *processes) {
    (void)processes;
    *room = 0;
    return ask(handle, 1);
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    int code = ask(handle, 1);
    rates->gpu = (unsigned int)of_gpu(GPU(handle), "utilization", 0);
    rates->memory = 0;
    return code;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *degrees) {
    (void)sensor;
    *degrees = (unsigned int)of_gpu(GPU(handle), "temperature", 0);
    return ask(handle, 1);
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    *millijoules = (unsigned long long)of_gpu(GPU(handle), "energy", 0);
    return ask(handle, 1);
}

int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *errors) {
    (void)kind;
    (void)counter;
    *errors = (unsigned long long)of_gpu(GPU(handle), "ecc", 0);
    return ask(handle, 1);
}
