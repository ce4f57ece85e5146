# What tests need of the machine, for tests/run and tests/certify/run to source: a browser, MariaDB, a folder in memory,
# and the settings of the JVMs. Sets `no_browser` and `no_mariadb` for what to print when they are missing.

have() { command -v "$1" >/dev/null; }

# The page is tested in a real browser. Where there is none and none can be installed, those tests are skipped, aloud.
browser() {
    if [[ -n ${HEADRACE_CHROMIUM:-} ]] || have chromium; then
        return
    elif have google-chrome; then
        HEADRACE_CHROMIUM=$(command -v google-chrome)
        export HEADRACE_CHROMIUM
    elif have apt-get && [[ $EUID == 0 ]]; then
        echo "Installing the package chromium for the tests of the live page."
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null
        have chromium
    else
        return 1
    fi
}
no_browser="WITHOUT A BROWSER: the live page was NOT tested. Install the package chromium, or name a browser in HEADRACE_CHROMIUM."
if [[ ${HEADRACE_NO_BROWSER:-} != 1 ]] && ! browser; then
    export HEADRACE_NO_BROWSER=1
fi

# MariaDB represents the databases with a binlog. Where there is none and none can be installed, its tests are skipped,
# aloud.
mariadb() {
    local PATH="$PATH:/usr/sbin:/usr/local/sbin"
    if have mariadbd; then
        return
    elif have apt-get && [[ $EUID == 0 ]]; then
        echo "Installing the package mariadb-server for the tests of captured changes."
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mariadb-server >/dev/null
        have mariadbd
    else
        return 1
    fi
}
no_mariadb="WITHOUT MARIADB: changes out of a binlog were NOT tested. Install the package mariadb-server."
if [[ ${HEADRACE_NO_MARIADB:-} != 1 ]] && ! mariadb; then
    export HEADRACE_NO_MARIADB=1
fi

# Brokers, databases, tables and checkpoints live in memory where there is enough of it: half of what a checkpoint or a
# database costs here is waiting for the disk. The folder is removed in the end; after a failure it moves to the disk.
room_in_memory() {
    local free
    free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR==2 {print $4}')
    [[ $(stat -f -c %T /dev/shm 2>/dev/null) == tmpfs && ${free:-0} -gt 12000000 ]] &&
        awk '/^MemAvailable/ {exit $2 < 16000000}' /proc/meminfo
}
if [[ -z ${PYTEST_DEBUG_TEMPROOT:-} ]] && room_in_memory; then
    PYTEST_DEBUG_TEMPROOT=$(mktemp -d /dev/shm/headrace-tests.XXXXXX)
    export PYTEST_DEBUG_TEMPROOT
    leave_memory() {
        local failed=$? kept="${TMPDIR:-/tmp}/headrace-tests-failed"
        if [[ $failed != 0 ]]; then
            rm -rf "$kept" && cp -r --sparse=always "$PYTEST_DEBUG_TEMPROOT" "$kept" 2>/dev/null &&
                echo "Folders of the tests are in $kept" >&2
        fi
        rm -rf "$PYTEST_DEBUG_TEMPROOT"
    }
    trap leave_memory EXIT
fi

# Spark's JVMs live for minutes here. Half of their time went into optimising code that then ran once: with the quick
# compiler and the plain collector the same tests take 0.6 of the processor time. That compiler has room for 48 MB of
# code unless set otherwise; twelve flows in one JVM need more, and die of it. And Spark writes Java for the wide rows of
# Delta's log, again in every task that reads it: a third of the processor time that is left. Reading them without takes
# no longer, and whole stages, which data passes through, are still compiled.
# Enough room for classes from the start saves the full collections by which a JVM finds out how much they need.
quick="-XX:MetaspaceSize=256m -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# A query that has nothing to do looks for rows every 10 ms. Tests run a dozen of them that wait for each other.
quick+=" -Dspark.sql.streaming.pollingDelay=100ms"
if [[ -z ${SPARK_SUBMIT_OPTS:-} ]]; then
    export SPARK_SUBMIT_OPTS="$quick"
    # Some thirty of them start in a run, and each would read and check the same classes. The archive is made again
    # when the jars or the JVM change.
    classes="$(python -c 'import sys; print(sys.prefix)')/spark-classes.jsa"
    if python tests/class_archive.py "$classes"; then
        SPARK_SUBMIT_OPTS+=" -XX:SharedArchiveFile=$classes -Xlog:cds=off,cds+dynamic=off -Xlog:class+path=off"
    fi
fi
export HEADRACE_PARTS_JAVA_OPTS="${HEADRACE_PARTS_JAVA_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}"
