#compdef tabane
# Completion of tabane for zsh, as 'tabane completions zsh' prints it.

_tabane() {
  local -a found directories others
  local line value
  local -i at=2
  found=("${(@f)$(tabane complete-words "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
  found=(${found:#})
  # The command stands behind --cluster.
  while [[ $words[at] == --cluster(|=*) ]]; do
    [[ $words[at] == --cluster ]] && (( at += 1 ))
    (( at += 1 ))
  done
  if [[ $words[at] == run && $#found == 0 ]]; then
    _alternative 'commands:command:_command_names' 'files:file:_files'
    return
  fi
  for line in $found; do
    value=${line%%$'\t'*}
    value=${value//\\/\\\\}
    value=${value//:/\\:}
    if [[ $value == */ ]]; then
      directories+=("$value")
    else
      others+=("$value:${line#*$'\t'}")
    fi
  done
  [[ $#directories == 0 ]] || _describe -V 'directory' directories -S ''
  [[ $#others == 0 ]] || _describe -V 'word' others
}

_tabane "$@"
